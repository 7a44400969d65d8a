// The Python frames of the calling thread, for memory snapshots. Python's stable functions are looked up in the process:
// the wheel is built without any Python's headers, and serves each version.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "torch_abi.h"

namespace {

struct python {
  int (*has_gil)() = nullptr;
  void* (*frame)() = nullptr;               // PyEval_GetFrame, borrowed
  void* (*code)(void*) = nullptr;           // PyFrame_GetCode, new
  void* (*back)(void*) = nullptr;           // PyFrame_GetBack, new
  int (*line)(void*) = nullptr;             // PyFrame_GetLineNumber
  void* (*attribute)(void*, const char*) = nullptr;  // new
  const char* (*text)(void*) = nullptr;     // PyUnicode_AsUTF8
  void (*drop)(void*) = nullptr;            // Py_DecRef
  void (*clear)() = nullptr;                // PyErr_Clear
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
    p.whole = find(p.has_gil, "PyGILState_Check") && find(p.frame, "PyEval_GetFrame") && find(p.code, "PyFrame_GetCode") &&
              find(p.back, "PyFrame_GetBack") && find(p.line, "PyFrame_GetLineNumber") &&
              find(p.attribute, "PyObject_GetAttrString") && find(p.text, "PyUnicode_AsUTF8") && find(p.drop, "Py_DecRef") &&
              find(p.clear, "PyErr_Clear");
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

// name US file US line, frames parted by RS, the innermost first.
std::uint64_t frames(char* text, std::uint64_t most) {
  const python& p = here();
  if (!p.whole || p.has_gil() == 0) return 0;
  void* frame = p.frame();
  bool owned = false;
  std::uint64_t used = 0;
  for (int depth = 0; frame != nullptr && depth < 64; ++depth) {
    void* const code = p.code(frame);
    const std::string line = word(p, code, "co_name") + '\x1f' + word(p, code, "co_filename") + '\x1f' +
                             std::to_string(p.line(frame)) + '\x1e';
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
