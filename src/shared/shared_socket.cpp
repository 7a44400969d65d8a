// Shared memory over a Unix socket: one message of fixed size, with the descriptor beside its first
// byte.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "millpond/base/units.hpp"
#include "millpond/shared/shared_memory.hpp"

namespace millpond {
namespace {

// Both processes run on one machine, so numbers travel as they are.
struct message {
  std::array<char, 8> magic{};
  std::uint64_t bytes = 0;
  std::uint64_t name_bytes = 0;
  std::array<char, 256> name{};
};
constexpr std::array<char, 8> magic{'m', 'p', 's', 'h', 'a', 'r', 'e', '1'};
static_assert(sizeof(message) == 280, "both sides know this layout");

error system_error(error_code code, const std::string& doing) {
  return {code, doing + ": " + std::strerror(errno)};
}

}  // namespace

result<void> send_shared(int socket, const shared_memory& what, std::string_view name) {
  message note;
  note.magic = magic;
  note.bytes = what.bytes();
  note.name_bytes = name.size();
  if (name.size() >= note.name.size()) {
    return error{error_code::invalid_argument,
                 "send_shared: a name of " + std::to_string(name.size()) + " bytes; at most 255"};
  }
  std::copy(name.begin(), name.end(), note.name.begin());
  auto descriptor = what.export_descriptor();
  if (!descriptor) return descriptor.error();

  iovec part{&note, sizeof note};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = descriptor->get();
  std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);

  // The descriptor goes with the first byte; what a stream socket did not take at once follows
  // without it.
  std::size_t sent = 0;
  while (sent < sizeof note) {
    const ssize_t n = ::sendmsg(socket, &header, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return system_error(error_code::output_failure,
                          "sending shared memory of " + format_bytes(what.bytes()));
    sent += static_cast<std::size_t>(n);
    part = {reinterpret_cast<char*>(&note) + sent, sizeof note - sent};
    header.msg_control = nullptr;
    header.msg_controllen = 0;
  }
  return {};
}

result<received_memory> receive_shared(int socket, std::shared_ptr<driver> gpu) {
  message note;
  unique_descriptor descriptor;
  std::size_t got = 0;
  while (got < sizeof note) {
    iovec part{reinterpret_cast<char*>(&note) + got, sizeof note - got};
    // Room for more descriptors than one, so that those of a stranger's message are seen and
    // closed.
    alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control{};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t n = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error(error_code::bad_input, "receiving shared memory");
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
        unique_descriptor one(fd);
        if (descriptor.get() < 0) descriptor = std::move(one);
      }
    }
    if (n == 0) {
      return error{error_code::bad_input,
                   "receiving shared memory: the other side closed the socket after " +
                       std::to_string(got) + " of " + std::to_string(sizeof note) + " bytes"};
    }
    got += static_cast<std::size_t>(n);
  }
  if (note.magic != magic || note.name_bytes >= note.name.size()) {
    return error{error_code::bad_input,
                 "receiving shared memory: expected a message that begins with 'mpshare1'"};
  }
  if (descriptor.get() < 0)
    return error{error_code::bad_input,
                 "receiving shared memory: the message came without a file descriptor"};
  auto memory = shared_memory::import(std::move(gpu), descriptor.get(), note.bytes);
  if (!memory) return memory.error();
  return received_memory{std::move(memory).value(), std::string(note.name.data(), note.name_bytes)};
}

}  // namespace millpond
