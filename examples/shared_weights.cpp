// One copy of a model's weights for two serving processes. This process loads the weights into
// shareable memory, starts two servers, and sends each the memory as a file descriptor; then it
// lets its own hold go, and the servers serve on.
//
//     shared_weights            the first CUDA device, or the simulated GPU where there is none; 1
//     GiB shared_weights sim        the simulated GPU; 64 MiB
#include <millpond/millpond.hpp>
#include <millpond/shared/shared_memory.hpp>

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

extern char** environ;
namespace mp = millpond;

namespace {

constexpr std::uint64_t identity = 20;  // what the weights hold, so that anyone can check them

void must(mp::call_result answer) {
  if (!answer.ok()) throw mp::memory_error(mp::to_error(answer, "shared_weights"));
}
template <class T>
T must(mp::result<T> answer) {
  if (!answer) throw mp::memory_error(answer.error());
  return std::move(answer).value();
}

std::shared_ptr<mp::driver> open_gpu(const std::string& which) {
  if (which != "sim") return must(mp::open_cuda_driver(0));
  mp::simulated_gpu_options options;
  options.mode = mp::simulated_gpu_options::contents::bytes;  // memory that another process can see
  return must(mp::simulated_gpu::create(options));
}

std::uint64_t free_bytes(mp::driver& gpu) {
  std::uint64_t free = 0, total = 0;
  must(gpu.memory_info(&free, &total));
  return free;
}

// Reads all weights on the GPU, as a forward pass would, and answers how many words are wrong.
std::uint64_t forward(mp::driver& gpu, const mp::shared_memory& weights, mp::stream_handle stream) {
  void* host = nullptr;
  must(gpu.host_allocate(&host, sizeof(mp::identity_report), mp::driver::host_flags::none));
  auto* const report = new (host) mp::identity_report;
  const mp::identity_block block{weights.address(), weights.bytes(), identity};
  must(gpu.identity_check({&block, 1}, report, stream));
  must(gpu.stream_synchronize(stream));
  const std::uint64_t wrong = report->mismatches;
  must(gpu.host_free(host));
  return wrong;
}

void say(int socket, const std::string& line) {
  if (::send(socket, line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size()))
    throw std::runtime_error("the other process is gone");
}
std::string hear(int socket) {
  char text[256];
  const ssize_t n = ::recv(socket, text, sizeof text, 0);
  if (n <= 0) throw std::runtime_error("the other process is gone");
  return {text, static_cast<std::size_t>(n)};
}

int serve(int socket, const std::string& which) {
  const auto gpu = open_gpu(which);
  must(gpu->bind_thread());
  mp::stream_handle stream = nullptr;
  must(gpu->stream_create(&stream));
  bool all_right = true;
  {
    const std::uint64_t before = free_bytes(*gpu);
    const mp::received_memory got = must(mp::receive_shared(socket, gpu));
    const std::uint64_t after = free_bytes(*gpu);
    const std::uint64_t wrong = forward(*gpu, got.memory, stream);
    say(socket, "imported '" + got.name + "', " + mp::format_bytes(got.memory.bytes()) + "; took " +
                    mp::format_bytes(before > after ? before - after : 0) +
                    " of the device for it; " + std::to_string(wrong) + " words wrong");
    hear(socket);  // the owner has let go
    const std::uint64_t later = forward(*gpu, got.memory, stream);
    say(socket, "serves on without the owner; " + std::to_string(later) + " words wrong");
    all_right = wrong == 0 && later == 0;
    hear(socket);  // until everybody has seen it
  }
  must(gpu->stream_destroy(stream));
  return all_right ? 0 : 1;
}

struct server {
  int socket = -1;
  pid_t process = 0;
};

server start_server(const std::string& which) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0)
    throw std::runtime_error(std::string("socketpair: ") + std::strerror(errno));
  const std::string end = std::to_string(pair[1]);
  std::string words[] = {"shared_weights", "serve", end, which};
  char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addclose(&actions, pair[0]);
  server out;
  out.socket = pair[0];
  const int failed =
      ::posix_spawn(&out.process, "/proc/self/exe", &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(pair[1]);
  if (failed != 0)
    throw std::runtime_error(std::string("starting a server: ") + std::strerror(failed));
  return out;
}

int own(const std::string& which) {
  const auto gpu = open_gpu(which);
  std::printf("GPU: %s\n", gpu->info().name.c_str());
  must(gpu->bind_thread());
  mp::stream_handle stream = nullptr;
  must(gpu->stream_create(&stream));
  const std::uint64_t bytes = gpu->simulated() ? 64 * mp::MiB : mp::GiB;
  std::vector<server> servers;
  {
    const std::uint64_t before = free_bytes(*gpu);
    const mp::shared_memory weights = must(mp::shared_memory::create(gpu, bytes));
    std::printf("owner:    loaded weights, took %s of the device\n",
                mp::format_bytes(before - free_bytes(*gpu)).c_str());
    const mp::identity_block block{weights.address(), weights.bytes(), identity};
    must(gpu->identity_write({&block, 1}, stream));
    must(gpu->stream_synchronize(stream));
    for (int i = 0; i < 2; ++i) servers.push_back(start_server(which));
    for (const server& s : servers) {
      if (auto sent = mp::send_shared(s.socket, weights, "weights"); !sent)
        throw mp::memory_error(sent.error());
    }
    for (std::size_t i = 0; i < servers.size(); ++i)
      std::printf("server %zu: %s\n", i + 1, hear(servers[i].socket).c_str());
  }
  std::printf("owner:    has let go of the weights\n");
  for (const server& s : servers) say(s.socket, "serve on");
  for (std::size_t i = 0; i < servers.size(); ++i)
    std::printf("server %zu: %s\n", i + 1, hear(servers[i].socket).c_str());
  int status = 0;
  for (const server& s : servers) {
    say(s.socket, "end");
    int ended = 0;
    ::waitpid(s.process, &ended, 0);
    ::close(s.socket);
    if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 0) status = 1;
  }
  must(gpu->stream_destroy(stream));
  return status;
}

}  // namespace

int main(int count, char** arguments) try {
  if (count == 4 && std::string_view(arguments[1]) == "serve")
    return serve(std::atoi(arguments[2]), arguments[3]);
  std::string which = count > 1 ? arguments[1] : "0";
  if (which != "sim" && !mp::open_cuda_driver(0)) {
    std::printf("No card is used: %s\n", mp::open_cuda_driver(0).error().message.c_str());
    which = "sim";
  }
  return own(which);
} catch (const std::exception& why) {
  std::fprintf(stderr, "shared_weights: %s\n", why.what());
  return 4;
}
