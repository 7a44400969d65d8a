#include "cli/output.hpp"

#include <fmt/format.h>

#include <ostream>
#include <utility>

namespace millpond::cli {
namespace {

class stream_sink final : public trace::sink {
 public:
  explicit stream_sink(std::ostream& to) : to_(to) {}
  result<void> write(std::span<const std::uint8_t> bytes) override {
    to_.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    if (!to_) return error{error_code::output_failure, "standard output could not be written"};
    return {};
  }

 private:
  std::ostream& to_;
};

}  // namespace

result<output> output::open(session& here, const std::string& path) {
  if (path != "-") {
    auto file = output_file::create(path);
    if (!file) return file.error();
    output made(nullptr, here.out());
    made.file_ = std::make_unique<output_file>(std::move(*file));
    made.to_ = trace::make_sink(*made.file_);
    return made;
  }
  if (here.json())
    return error{error_code::invalid_argument,
                 "-o - and --json both want standard output: name a file"};
  return output(std::make_unique<stream_sink>(here.unfiltered_out()), here.err());
}

result<void> output::finish() {
  to_.reset();
  return file_ == nullptr ? result<void>{} : file_->put_in_place();
}

result<void> output::write(std::string_view text) {
  return to_->write({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

result<void> needs_a_file(const std::string& path) {
  if (path != "-") return {};
  return error{error_code::invalid_argument,
               "-o -: this is written piece by piece and read again, so it needs a file's name"};
}

}  // namespace millpond::cli
