// What a test and the scripted libcuda share: plain memory, since the two are different binaries.
#pragma once
#include <cstdint>

struct fake_libcuda_script {
  int version = 13000;
  int init_status = 0;
  int devices = 1;
  char missing[64] = "";  // cuGetProcAddress denies this name
  char failing[64] = "";  // this function answers `failing_status`
  int failing_status = 0;
  int capturing = 0;         // what cuStreamIsCapturing says
  unsigned memory_type = 0;  // what cuPointerGetAttributes says of every pointer
  unsigned managed = 0;
  std::uint64_t pool = 0;
  // What happened.
  unsigned calls = 0;
  unsigned retained = 0, released = 0, modules = 0;
  std::uint64_t current_context = 0;
  int capture_mode = 0;
  char last[64] = "";
  std::uint64_t arguments[12] = {};  // of the last call, as bits
  char log[4096] = "";  // names of the calls since the script was reset, each with a space
};

// Looked up by name in the loaded library.
using fake_libcuda_script_function = fake_libcuda_script*();
