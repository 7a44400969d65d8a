#include "record/symbols.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace millpond::record {
namespace {

std::string hexadecimal(std::uintptr_t value) {
  char text[2 + 16 + 1];
  char* at = text + sizeof(text) - 1;
  *at = '\0';
  do {
    *--at = "0123456789abcdef"[value & 15];
    value >>= 4;
  } while (value != 0);
  return std::string("0x") + at;
}

std::string demangled(const char* name) {
  int status = 0;
  char* made = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  if (made == nullptr) return name;
  std::string text(made);
  std::free(made);
  return text.substr(0, 200);
}

}  // namespace

bool is_cuda_module(std::string_view path) noexcept {
  const auto slash = path.rfind('/');
  const std::string_view name = slash == std::string_view::npos ? path : path.substr(slash + 1);
  for (const std::string_view each :
       {"libcuda.so", "libcudart.so", "libcudart-", "libcupti", "libmillpond_record"}) {
    if (name.starts_with(each)) return true;
  }
  return false;
}

bool is_cuda_symbol(std::string_view name) noexcept {
  if (name.starts_with("__cuda") || name.starts_with("cudart::") || name.starts_with("__cudart") ||
      name.starts_with("libcudart_static_") || name.starts_with("__device_stub__")) {
    return true;
  }
  const auto upper = [&](std::size_t at) {
    return name.size() > at && name[at] >= 'A' && name[at] <= 'Z';
  };
  return (name.starts_with("cuda") && upper(4)) || (name.starts_with("cu") && upper(2));
}

std::vector<trace::frame> frames_of(std::span<const std::uintptr_t> stack, std::size_t most,
                                    trace::string_table& strings, const stack_store& store) {
  std::vector<trace::frame> made;
  const auto python = std::ranges::find_if(stack, stack_store::is_python);
  const auto python_count = static_cast<std::size_t>(stack.end() - python);
  // Python's frames say more than the libraries' beneath them: these keep three eighths at least.
  const std::size_t native = std::max(most - std::min(most, python_count), most * 3 / 8);
  for (const std::uintptr_t each : std::span(stack.begin(), python)) {
    if (made.size() == native) break;
    Dl_info info{};
    link_map* module = nullptr;
    // A return address is after its call, perhaps already in the next function.
    const auto pc = each - 1;
    if (dladdr1(reinterpret_cast<void*>(pc), &info, reinterpret_cast<void**>(&module),
                RTLD_DL_LINKMAP) == 0) {
      made.push_back({strings.intern("? (+" + hexadecimal(pc) + ")"), 0, 0});
      continue;
    }
    const std::string_view path = info.dli_fname == nullptr ? "" : info.dli_fname;
    if (made.empty() && is_cuda_module(path)) continue;
    const std::string name = info.dli_sname == nullptr ? "?" : demangled(info.dli_sname);
    if (made.empty() && is_cuda_symbol(name)) continue;
    // From here on the interpreter calls itself; its own frames follow.
    if (python_count > 0 && name == "_PyEval_EvalFrameDefault") break;
    // The load address is 0 for a program that is not position-independent, as its addresses are
    // its file's.
    const std::uintptr_t base = module == nullptr ? 0 : module->l_addr;
    made.push_back(
        {strings.intern(name + " (+" + hexadecimal(pc - base) + ")"), strings.intern(path), 0});
  }
  for (const std::uintptr_t each : std::span(python, stack.end())) {
    if (made.size() == most) break;
    const python_line line = store.python_at(each);
    made.push_back({strings.intern(line.function), strings.intern(line.file), line.line});
  }
  return made;
}

}  // namespace millpond::record
