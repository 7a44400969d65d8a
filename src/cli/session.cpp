#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/utf8.hpp"
#include "cli/command.hpp"

namespace millpond::cli {

exit_status status_of(const error& failure) noexcept {
  switch (failure.code) {
    case error_code::bad_input: return exit_status::bad_input;
    case error_code::output_failure:  // -o names a place that cannot be written
    case error_code::invalid_argument: return exit_status::usage;
    case error_code::out_of_memory:
    case error_code::driver_failure:
    case error_code::not_supported:
    case error_code::wrong_kind:
    case error_code::double_free:
    case error_code::foreign_pointer:
    case error_code::interior_pointer:
    case error_code::not_permitted: break;
  }
  return exit_status::device;
}

std::optional<gpu_choice> parse_gpu_choice(std::string_view text) {
  gpu_choice choice;
  if (text == "sim") {
    choice.what = gpu_choice::kind::simulated;
    return choice;
  }
  if (text.starts_with("sim:") && text.size() > 4) {
    choice.what = gpu_choice::kind::simulated;
    choice.profile = text.substr(4);
    return choice;
  }
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), choice.ordinal);
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size() || choice.ordinal < 0) {
    return std::nullopt;
  }
  choice.what = gpu_choice::kind::card;
  return choice;
}

session::session(settings chosen, std::ostream& out, std::ostream& err)
    : settings_(std::move(chosen)),
      unfiltered_out_(out),
      unfiltered_err_(err),
      out_(out),
      err_(err),
      terminal_(isatty(STDERR_FILENO) == 1) {}

std::string session::gpu_label(const driver& gpu) const {
  if (!gpu.simulated()) return gpu.info().name;
  if (why_simulated_.empty()) return fmt::format("{} (simulated, as asked)", gpu.info().name);
  return fmt::format("{} (simulated: {})", gpu.info().name, why_simulated_);
}

std::uint64_t session::now_ns() noexcept {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

std::string document_of(const nlohmann::ordered_json& made) {
  return made.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

void session::progress(std::string_view text) {
  if (!terminal_) return;
  const std::string shown = printable(text);
  unfiltered_err_ << '\r' << shown;
  for (std::size_t column = shown.size(); column < progress_width_; ++column)
    unfiltered_err_ << ' ';
  unfiltered_err_.flush();
  progress_width_ = shown.size();
}

void session::end_progress() {
  if (progress_width_ == 0) return;
  unfiltered_err_ << '\r' << std::string(progress_width_, ' ') << '\r';
  unfiltered_err_.flush();
  progress_width_ = 0;
}

exit_status session::fail(const error& failure) {
  return fail(status_of(failure), failure.message);
}

exit_status session::fail(exit_status status, std::string_view message) {
  end_progress();
  err_ << "millpond: " << message << '\n' << std::flush;
  return status;
}

}  // namespace millpond::cli
