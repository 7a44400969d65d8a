// The one way in which a whole file is written: beside its place first, without a name where the
// file system can do that, and put there when it is complete. Whoever ends the process leaves what
// was there before, and nothing else.
//
// One rule for links: the file that they lead to is the one that is written, also where there is
// none yet; links that lead in a circle are an error. Devices and pipes are written as they are.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "millpond/base/result.hpp"

namespace millpond {

// Where a name leads.
struct write_target {
  enum class sort { nothing, file, stream };  // stream: a device or a pipe
  std::string path;                           // behind all links
  sort what = sort::nothing;
  unsigned mode = 0;  // permission bits of a file
};
// output_failure for a folder, a socket, links in a circle and what cannot be looked at.
[[nodiscard]] result<write_target> find_write_target(const std::string& path);

// Not thread-safe; several may be written at once, the same place too: each is whole.
class output_file {
 public:
  // A new file gets `mode` less the process's umask; one that is replaced keeps the mode of the old
  // one.
  [[nodiscard]] static result<output_file> create(const std::string& path, unsigned mode = 0644);
  output_file(output_file&& from) noexcept;
  output_file& operator=(output_file&&) = delete;
  ~output_file();  // without put_in_place() nothing is left
  // All of the bytes, or output_failure with the system's reason.
  [[nodiscard]] result<void> write(std::span<const std::uint8_t> bytes);
  // Only once. What was written to a device or a pipe is there already.
  [[nodiscard]] result<void> put_in_place();
  [[nodiscard]] const std::string& path() const noexcept { return target_.path; }

 private:
  output_file(int file, write_target target, std::string beside, int slot);
  [[nodiscard]] result<void> failed(const char* doing) const;
  void forget() noexcept;
  int file_ = -1;
  write_target target_;
  std::string beside_;  // its name until it is put in place; empty: it has none
  int slot_ = -1;       // of the names that a signal removes
  std::uint64_t written_ = 0;
};

// Renames where nothing has the new name; false otherwise, with errno.
[[nodiscard]] bool rename_to_free_name(const std::string& from, const std::string& to) noexcept;

// Removes what output_files of this process have named and not put in place. Async-signal-safe.
void remove_unfinished_files() noexcept;
// From now on SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGPIPE do that before they end the process;
// those that are ignored stay so. For the command's main() only.
void remove_unfinished_files_at_signals() noexcept;

}  // namespace millpond
