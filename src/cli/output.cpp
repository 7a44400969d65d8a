#include "cli/output.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
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
    std::error_code fault;
    const auto there = std::filesystem::status(path, fault);
    const bool replaced =
        !std::filesystem::exists(there) || std::filesystem::is_regular_file(there);
    // Through a link to the file that it names.
    const std::string target =
        replaced ? std::filesystem::weakly_canonical(path, fault).string() : path;
    const std::string part = replaced ? target + ".part" : std::string();
    auto file = trace::make_file_sink(replaced ? part : path);
    if (!file)
      return error{file.error().code,
                   fmt::format("{}: cannot be written ({})", path, file.error().message)};
    output made(std::move(*file), here.out());
    made.path_ = target;
    made.part_ = part;
    return made;
  }
  if (here.json())
    return error{error_code::invalid_argument,
                 "-o - and --json both want standard output: name a file"};
  return output(std::make_unique<stream_sink>(here.out()), here.err());
}

output::output(output&& from) noexcept
    : to_(std::move(from.to_)),
      beside_(from.beside_),
      path_(std::move(from.path_)),
      part_(std::exchange(from.part_, {})) {}

output::~output() {
  if (!part_.empty()) unlink(part_.c_str());
}

result<void> output::finish() {
  to_.reset();
  if (part_.empty()) return {};
  std::error_code fault;
  std::filesystem::rename(part_, path_, fault);
  if (fault)
    return error{error_code::output_failure, fmt::format("{}: {}", path_, fault.message())};
  part_.clear();
  return {};
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
