#include "cli/program_file.hpp"

#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

namespace millpond::cli {
namespace {

// A sentence of the runtime's error table: in libcudart_static.a of every release since CUDA 3, and
// in no program that uses the shared runtime.
constexpr std::string_view runtime_mark = "cudaErrorCudartUnloading";

// The variable that our own library reads, whose name stands in it.
constexpr std::string_view preload_mark = "MILLPOND_RUN has a word";
#if defined(__aarch64__)
constexpr Elf64_Half own_machine = EM_AARCH64;
#else
constexpr Elf64_Half own_machine = EM_X86_64;
#endif

bool is_regular_file(const std::string& path) {
  struct stat found{};
  return stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode);
}

bool runnable(const std::string& path) {
  return is_regular_file(path) && access(path.c_str(), X_OK) == 0;
}

std::string find_program(const std::string& name, const char* search_path) {
  if (name.find('/') != std::string::npos) return runnable(name) ? name : std::string();
  std::string_view rest = search_path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : search_path;
  while (true) {
    const std::size_t end = rest.find(':');
    const std::string folder(rest.substr(0, end));
    std::string path = (folder.empty() ? "." : folder) + "/" + name;
    if (runnable(path)) return path;
    if (end == std::string_view::npos) return {};
    rest = rest.substr(end + 1);
  }
}

// A struct of the file at an offset, if it lies in it.
template <class T>
bool read_at(const std::string& bytes, std::uint64_t offset, T* out) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return false;
  std::memcpy(out, bytes.data() + offset, sizeof(T));
  return true;
}

void read_elf(const std::string& bytes, program_facts& out) {
  Elf64_Ehdr head{};
  if (!read_at(bytes, 0, &head) || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return;
  out.elf = true;
  if (head.e_ident[EI_CLASS] != ELFCLASS64) return;
  std::vector<Elf64_Phdr> parts;
  for (unsigned n = 0; n < head.e_phnum; ++n) {
    Elf64_Phdr part{};
    if (!read_at(bytes, head.e_phoff + std::uint64_t{n} * head.e_phentsize, &part)) return;
    parts.push_back(part);
    if (part.p_type == PT_INTERP) out.dynamic = true;
  }
  const auto file_offset = [&](std::uint64_t address) -> std::uint64_t {
    for (const Elf64_Phdr& p : parts) {
      if (p.p_type == PT_LOAD && address >= p.p_vaddr && address - p.p_vaddr < p.p_filesz)
        return address - p.p_vaddr + p.p_offset;
    }
    return ~std::uint64_t{0};
  };
  for (const Elf64_Phdr& p : parts) {
    if (p.p_type != PT_DYNAMIC) continue;
    std::vector<std::uint64_t> names;
    std::uint64_t strings = ~std::uint64_t{0};
    for (std::uint64_t at = p.p_offset;; at += sizeof(Elf64_Dyn)) {
      Elf64_Dyn entry{};
      if (!read_at(bytes, at, &entry) || entry.d_tag == DT_NULL) break;
      if (entry.d_tag == DT_NEEDED) names.push_back(entry.d_un.d_val);
      if (entry.d_tag == DT_STRTAB) strings = file_offset(entry.d_un.d_ptr);
    }
    for (const std::uint64_t name : names) {
      if (strings >= bytes.size() || name >= bytes.size() - strings) continue;
      const char* const text = bytes.data() + strings + name;
      out.needed.emplace_back(text, strnlen(text, bytes.size() - strings - name));
    }
  }
}

}  // namespace

result<program_facts> read_program(const std::string& name, const char* search_path) {
  program_facts out;
  out.path = find_program(name, search_path);
  if (out.path.empty()) return error{error_code::bad_input, name + ": there is no such program"};
  struct stat facts{};
  if (stat(out.path.c_str(), &facts) == 0)
    out.sets_user = (facts.st_mode & (S_ISUID | S_ISGID)) != 0;
  std::ifstream file(out.path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file && bytes.empty()) return error{error_code::bad_input, out.path + ": cannot be read"};
  read_elf(bytes, out);
  const bool shared = std::any_of(out.needed.begin(), out.needed.end(), [](const std::string& n) {
    return n.starts_with("libcudart.so");
  });
  out.runtime_inside = out.elf && !shared && bytes.find(runtime_mark) != std::string::npos;
  return out;
}

bool is_preload_library(const std::string& path) {
  if (!is_regular_file(path)) return false;
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Elf64_Ehdr head{};
  return read_at(bytes, 0, &head) && std::memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 &&
         head.e_ident[EI_CLASS] == ELFCLASS64 && head.e_machine == own_machine &&
         head.e_type == ET_DYN && bytes.find(preload_mark) != std::string::npos;
}

std::string why_not_served(const program_facts& program) {
  if (!program.elf) return {};
  if (!program.dynamic) {
    return program.path +
           " is linked statically as a whole, so that nothing can be put between it and CUDA. Link "
           "it dynamically, "
           "or use millpond's library in it";
  }
  if (program.sets_user) {
    return program.path +
           " runs as another user (set-user-id), and the dynamic linker takes no library from us "
           "for it. Run it as "
           "that user";
  }
  if (program.runtime_inside) {
    return program.path +
           " has the CUDA runtime linked statically into it, so that its calls of cudaMalloc "
           "cannot be replaced. Link it "
           "with the shared one: nvcc -cudart shared, or CMake's CUDA_RUNTIME_LIBRARY Shared";
  }
  return {};
}

}  // namespace millpond::cli
