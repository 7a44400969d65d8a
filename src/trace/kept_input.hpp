// A file that is opened more than once.
#pragma once
#include <cstdio>
#include <memory>
#include <string>

#include "millpond/base/result.hpp"

namespace millpond::trace {

// What can be read only once (a pipe, /dev/stdin behind one) is copied into a temporary file
// without a name at the first reading; other files are opened where they are. Movable.
class kept_input {
 public:
  // bad_input for a folder, a device and a file that cannot be opened; output_failure where there
  // is no room for the copy.
  [[nodiscard]] static result<kept_input> take(const std::string& path);
  // To be opened while this object lives.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  // What the user called it: for messages.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  struct close_file {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };
  std::string path_, name_;
  std::unique_ptr<std::FILE, close_file> copy_;
};

}  // namespace millpond::trace
