#include "bindings/preload/real.hpp"

#include <dlfcn.h>
#include <link.h>

#include <string_view>

namespace millpond::preload {
namespace {

struct wanted {
  std::string_view prefix;  // of the file's name
  const char* symbol;
  void* found = nullptr;
};

int look_at(dl_phdr_info* info, std::size_t, void* data) {
  auto& want = *static_cast<wanted*>(data);
  const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  if (!path.substr(path.rfind('/') + 1).starts_with(want.prefix)) return 0;
  void* const library = ::dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return 0;
  want.found = ::dlsym(library, want.symbol);
  ::dlclose(library);  // it stays: somebody else loaded it
  return want.found != nullptr ? 1 : 0;
}

}  // namespace

void* find_real(origin where, const char* name) noexcept {
  if (void* const next = ::dlsym(RTLD_NEXT, name)) return next;
  wanted want{where == origin::runtime ? "libcudart.so" : "libcuda.so", name};
  ::dl_iterate_phdr(look_at, &want);
  return want.found;
}

}  // namespace millpond::preload
