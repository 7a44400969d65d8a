// While one lives the system has no thread to give: a stack of more than the address space is asked
// for each.
#pragma once
#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>

namespace millpond {

class no_threads {
 public:
  no_threads() {
    pthread_attr_t none;
    EXPECT_EQ(::pthread_getattr_default_np(&none), 0);
    EXPECT_EQ(::pthread_attr_getstacksize(&none, &before_), 0);
    EXPECT_EQ(::pthread_attr_setstacksize(&none, std::size_t{1} << 47), 0);
    EXPECT_EQ(::pthread_setattr_default_np(&none), 0);
    ::pthread_attr_destroy(&none);
  }
  ~no_threads() {
    pthread_attr_t some;
    ::pthread_getattr_default_np(&some);
    ::pthread_attr_setstacksize(&some, before_);
    EXPECT_EQ(::pthread_setattr_default_np(&some), 0);
    ::pthread_attr_destroy(&some);
  }
  no_threads(const no_threads&) = delete;
  no_threads& operator=(const no_threads&) = delete;

 private:
  std::size_t before_ = 0;
};

}  // namespace millpond
