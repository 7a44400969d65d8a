// The Python frames of the calling thread, for memory snapshots. Python's stable functions are
// looked up in the process: the wheel is built without any Python's headers, and serves each
// version.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "torch_abi.h"

namespace {

struct python {
  int (*running)() = nullptr;       // Py_IsInitialized
  int (*take_gil)() = nullptr;      // PyGILState_Ensure: from any thread, also one that has it
  void (*give_gil)(int) = nullptr;  // PyGILState_Release
  void* (*frame)() = nullptr;       // PyEval_GetFrame, borrowed
  void* (*code)(void*) = nullptr;   // PyFrame_GetCode, new
  void* (*back)(void*) = nullptr;   // PyFrame_GetBack, new
  int (*line)(void*) = nullptr;     // PyFrame_GetLineNumber
  void* (*attribute)(void*, const char*) = nullptr;  // new
  const char* (*text)(void*) = nullptr;              // PyUnicode_AsUTF8
  void (*drop)(void*) = nullptr;                     // Py_DecRef
  void (*clear)() = nullptr;                         // PyErr_Clear
  bool whole = false;
};

template <class Function>
bool find(Function*& out, const char* name) {
  out = reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
  return out != nullptr;
}

const python& here() {
  static const python found = [] {
    python p;
    p.whole = find(p.running, "Py_IsInitialized") && find(p.take_gil, "PyGILState_Ensure") &&
              find(p.give_gil, "PyGILState_Release") && find(p.frame, "PyEval_GetFrame") &&
              find(p.code, "PyFrame_GetCode") && find(p.back, "PyFrame_GetBack") &&
              find(p.line, "PyFrame_GetLineNumber") &&
              find(p.attribute, "PyObject_GetAttrString") && find(p.text, "PyUnicode_AsUTF8") &&
              find(p.drop, "Py_DecRef") && find(p.clear, "PyErr_Clear");
    return p;
  }();
  return found;
}

std::string word(const python& p, void* code, const char* attribute) {
  void* const value = p.attribute(code, attribute);
  if (value == nullptr) {
    p.clear();
    return "?";
  }
  const char* const text = p.text(value);
  std::string out = text == nullptr ? "?" : text;
  if (text == nullptr) p.clear();
  p.drop(value);
  return out;
}

class lock_of_python {
 public:
  explicit lock_of_python(const python& of) : of_(of), was_(of.take_gil()) {}
  ~lock_of_python() { of_.give_gil(was_); }
  lock_of_python(const lock_of_python&) = delete;
  lock_of_python& operator=(const lock_of_python&) = delete;

 private:
  const python& of_;
  const int was_;
};

// name US file US line, frames parted by RS, the innermost first. PyTorch lets go of Python's lock
// before it allocates, so that it is taken here; nobody who calls this holds a lock of ours.
std::uint64_t frames(char* text, std::uint64_t most) {
  const python& p = here();
  if (!p.whole || p.running() == 0) return 0;
  const lock_of_python held(p);
  void* frame = p.frame();
  bool owned = false;
  std::uint64_t used = 0;
  for (int depth = 0; frame != nullptr && depth < 64; ++depth) {
    void* const code = p.code(frame);
    const std::string line = word(p, code, "co_name") + '\x1f' + word(p, code, "co_filename") +
                             '\x1f' + std::to_string(p.line(frame)) + '\x1e';
    p.drop(code);
    void* const back = p.back(frame);
    if (owned) p.drop(frame);
    frame = back;
    owned = true;
    if (used + line.size() > most) break;
    line.copy(text + used, line.size());
    used += line.size();
  }
  if (frame != nullptr && owned) p.drop(frame);
  return used;
}

}  // namespace

// Not thread-safe; called by millpond.torch. Nonzero starts telling frames.
extern "C" __attribute__((visibility("default"))) void millpond_entry_tell_frames(int tell) {
  millpond_torch_frame_source(tell != 0 ? frames : nullptr);
}
