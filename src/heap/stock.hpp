// Records of one form, made many at a time, since a call of malloc is dear here, and given back
// with the stock alone: who looks without a lock may still read one. What was not taken is not
// touched.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <vector>

#include "base/check.hpp"

namespace millpond::heap {

template <class Record, std::size_t at_once>
class stock {
  static_assert(std::is_trivially_destructible_v<Record>);

 public:
  stock() = default;
  ~stock() {
    for (Record* const batch : batches_) ::operator delete(batch, alignment);
  }
  stock(const stock&) = delete;
  stock& operator=(const stock&) = delete;

  // How many can be taken.
  [[nodiscard]] std::size_t left() const noexcept { return left_; }
  // Makes more; std::bad_alloc, and all is as before.
  void add() {
    if (batches_.size() == batches_.capacity()) batches_.reserve(2 * batches_.size() + 4);
    batches_.push_back(static_cast<Record*>(::operator new(at_once * sizeof(Record), alignment)));
    left_ += at_once;
  }
  [[nodiscard]] Record& take() noexcept {
    MILLPOND_CHECK(left_ > 0, taken_);  // the caller has provided for it
    void* const at = batches_[taken_ / at_once] + taken_ % at_once;
    ++taken_;
    --left_;
    return *::new (at) Record;
  }
  [[nodiscard]] std::uint64_t touched_bytes() const noexcept { return taken_ * sizeof(Record); }

 private:
  static constexpr std::align_val_t alignment{alignof(Record)};
  std::vector<Record*> batches_;
  std::size_t taken_ = 0, left_ = 0;
};

}  // namespace millpond::heap
