// Columns of whole numbers as text for a page: differences in few bytes, deflate, base64.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millpond::report {

// Collects one column. The browser undoes it in src/report/page/data.js.
class column {
 public:
  // How the next number is kept: itself, or its difference to the one before (which may be
  // negative).
  enum class form : std::uint8_t { plain, difference };
  explicit column(form how) : how_(how) {}
  void add(std::uint64_t value);
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  // deflate (zlib's form), then base64. The column is spent.
  [[nodiscard]] std::string text();
  [[nodiscard]] const char* name() const noexcept {
    return how_ == form::plain ? "plain" : "difference";
  }

 private:
  form how_;
  std::uint64_t count_ = 0;
  std::uint64_t last_ = 0;
  std::vector<std::uint8_t> bytes_;
};

[[nodiscard]] std::string base64(const std::vector<std::uint8_t>& bytes);

}  // namespace millpond::report
