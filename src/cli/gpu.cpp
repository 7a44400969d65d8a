// Which GPU a subcommand gets.
#include <fmt/format.h>

#include "cli/command.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace millpond::cli {

result<std::shared_ptr<driver>> session::open_gpu() {
  if (settings_.gpu.what == gpu_choice::kind::automatic && card_ == nullptr &&
      why_simulated_.empty()) {
    auto opened = open_cuda_driver(0);
    if (opened) {
      card_ = std::move(*opened);
    } else {
      why_simulated_ = "no usable card here: `millpond doctor` says why";
    }
  }
  if (settings_.gpu.what == gpu_choice::kind::card && card_ == nullptr) {
    auto opened = open_cuda_driver(settings_.gpu.ordinal);
    if (!opened) return opened.error();
    card_ = std::move(*opened);
  }
  if (card_ != nullptr) return card_;

  simulated_gpu_options options;
  if (!settings_.gpu.profile.empty()) {
    auto profile = find_profile(settings_.gpu.profile);
    if (!profile) return profile.error();
    options.profile = std::move(*profile);
  }
  options.seed = settings_.seed;
  auto made = simulated_gpu::create(std::move(options));
  if (!made) return made.error();
  return std::shared_ptr<driver>(std::move(*made));
}

}  // namespace millpond::cli
