// Bytes from a file, from memory or out of gzip, and a window over them that can look ahead.
// Everything that reads a trace reads through input_buffer, so memory stays bounded whatever the
// file's length.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millpond/base/result.hpp"

namespace millpond::trace {

// A source of bytes. Not thread-safe.
class input {
 public:
  input() = default;
  input(const input&) = delete;
  input& operator=(const input&) = delete;
  virtual ~input() = default;
  // Writes up to into.size() bytes and returns how many; 0 only at the end. A failing disk and
  // broken compressed data are bad_input.
  virtual result<std::size_t> read(std::span<std::byte> into) = 0;
};

// A window over an input: bytes are looked at, then consumed.
class input_buffer {
 public:
  // `name` is what errors call the file.
  input_buffer(std::unique_ptr<input> from, std::string name);

  // Tries to have at least `wanted` bytes in view; returns how many there are, fewer only at the
  // end.
  result<std::size_t> fill(std::size_t wanted);
  [[nodiscard]] std::string_view view() const noexcept {
    return {reinterpret_cast<const char*>(buffer_.data()) + begin_, end_ - begin_};
  }
  void consume(std::size_t bytes) noexcept {
    begin_ += bytes;
    offset_ += bytes;
  }
  // Where the window starts, in bytes from the start of the (decompressed) input.
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  std::unique_ptr<input> from_;
  std::string name_;
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::uint64_t offset_ = 0;
  bool ended_ = false;
};

// Opens a file, or takes bytes already in memory; gzip is seen by its first bytes, whatever the
// name, and undone. A file that cannot be opened, a folder and a device are bad_input. `name` is
// what errors call the file; empty: its path.
result<input_buffer> open_input(const std::string& path, const std::string& name = {});
result<input_buffer> open_input_bytes(std::string name, std::string bytes);
// The same without undoing gzip.
result<std::unique_ptr<input>> open_raw_input(const std::string& path,
                                              const std::string& name = {});

// The error for a broken text file: "NAME:LINE: expected WHAT, found 'TEXT'" (TEXT shortened,
// escaped).
error bad_line(const std::string& name, std::uint64_t line, std::string_view expected,
               std::string_view found);
// The same by byte offset, for binary files; `found` is printed as it is.
error bad_byte(const std::string& name, std::uint64_t offset, std::string_view expected,
               std::string_view found);

}  // namespace millpond::trace
