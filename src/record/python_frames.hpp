// The calling thread's Python frames, read from the interpreter's own structures without calling
// into it: a thread that has let go of the interpreter's lock, as most libraries do around CUDA,
// still has its frames, and nobody else changes them. CPython 3.11, 3.12 and 3.13; of others it
// knows nothing, gives nothing, and says so.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace millpond::record {

// A frame as long as it runs: its code object and the instruction that it is at.
struct python_call_site {
  std::uintptr_t code = 0, instruction = 0;
  friend bool operator==(const python_call_site&, const python_call_site&) = default;
};

struct python_line {
  std::string function, file;
  std::uint32_t line = 0;
};

class python_frames {
 public:
  // Looks for an interpreter in this process. Call it once one may be there; any thread.
  static std::optional<python_frames> find() noexcept;
  // "CPython 3.14", where there is an interpreter whose structures are not known here (or one
  // without its lock, or so old that it does not say its version); empty where there is none, or a
  // known one.
  static std::string unknown_interpreter();

  // Innermost first; how many there are, at most what there is room for. None where the thread runs
  // no Python.
  std::size_t walk(std::span<python_call_site> into) const noexcept;
  // A hash of the place and of what its code object holds: an address alone may be another
  // function's by and by.
  [[nodiscard]] std::uint64_t identity(const python_call_site& call_site) const noexcept;
  // Of a frame that runs now in the calling thread. Nothing where the memory is not what it should
  // be.
  [[nodiscard]] std::optional<python_line> describe(const python_call_site& call_site) const;

 private:
  // Byte offsets in the interpreter's structures, which stay the same through a minor version.
  struct layout {
    unsigned version;          // hexadecimal, major and minor
    std::size_t thread_frame;  // PyThreadState: the frame, or what holds it
    bool through_c_frame;      // before 3.13 that is a _PyCFrame
    std::size_t c_frame_frame;
    std::size_t code, previous, instruction, owner;  // _PyInterpreterFrame
    std::size_t first_line, code_begin;              // PyCodeObject
    std::size_t ascii_bytes, other_bytes;  // sizes of PyASCIIObject and PyCompactUnicodeObject
  };
  [[nodiscard]] std::optional<std::string> text(std::uintptr_t object) const;

  static const layout layouts[];
  const layout* at_ = nullptr;
  void* (*this_thread_)() = nullptr;  // PyGILState_GetThisThreadState
  std::uintptr_t code_type_ = 0, text_type_ = 0, bytes_type_ = 0;
};

// The line of an instruction (counted in code units) by a code object's table of locations, as
// CPython 3.11 and later write it (Objects/locations.md); 0 where it has none.
[[nodiscard]] std::uint32_t line_of(std::span<const std::uint8_t> table, std::uint32_t first_line,
                                    std::uint64_t unit) noexcept;

}  // namespace millpond::record
