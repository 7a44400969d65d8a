// A block shared with a child process by its IPC handle, as programs of several processes a GPU do:
// the child writes into it, and the parent sees that. Prints the same with and without `millpond
// run --pool --ipc`.
//     nvcc -cudart shared ipc_program.cu -o ipc_program && ./ipc_program
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

__global__ void fill(unsigned* words, unsigned count, unsigned mark) {
  for (unsigned n = threadIdx.x; n < count; n += blockDim.x) words[n] = mark + n;
}

static void say(const char* what, long answer) {
  std::printf("%s: %ld\n", what, answer);
  std::fflush(stdout);
}

static int child(const char* hex) {
  cudaIpcMemHandle_t handle;
  for (std::size_t n = 0; n < sizeof handle; ++n) {
    unsigned byte = 0;
    std::sscanf(hex + 2 * n, "%2x", &byte);
    reinterpret_cast<unsigned char*>(&handle)[n] = static_cast<unsigned char>(byte);
  }
  void* block = nullptr;
  say("child opens", cudaIpcOpenMemHandle(&block, handle, cudaIpcMemLazyEnablePeerAccess));
  unsigned seen = 0;
  say("child copies",
      cudaMemcpy(&seen, static_cast<unsigned*>(block) + 5, sizeof seen, cudaMemcpyDeviceToHost));
  say("child sees", seen);
  fill<<<1, 128>>>(static_cast<unsigned*>(block), 1000, 90000);
  say("child has written", cudaDeviceSynchronize());
  say("child closes", cudaIpcCloseMemHandle(block));
  return 0;
}

int main(int count, char** arguments) {
  if (count > 1) return child(arguments[1]);
  void* kept = nullptr;
  unsigned* block = nullptr;
  // A block that served before, so that what is shared is memory that was kept.
  say("first", cudaMalloc(&kept, 4 << 20));
  say("free it", cudaFree(kept));
  say("a block", cudaMalloc(&block, 4 << 20));
  fill<<<1, 128>>>(block, 1000, 7000);
  say("filled", cudaDeviceSynchronize());
  cudaIpcMemHandle_t handle;
  say("handle", cudaIpcGetMemHandle(&handle, block));
  std::string command = std::string("'") + arguments[0] + "' ";
  for (std::size_t n = 0; n < sizeof handle; ++n) {
    char byte[3];
    std::snprintf(byte, sizeof byte, "%02x", reinterpret_cast<unsigned char*>(&handle)[n]);
    command += byte;
  }
  say("child ended with", std::system(command.c_str()));
  unsigned seen = 0;
  say("copy", cudaMemcpy(&seen, block + 999, sizeof seen, cudaMemcpyDeviceToHost));
  say("sees", seen);
  say("free", cudaFree(block));
  say("twice", cudaFree(block));
  return 0;
}
