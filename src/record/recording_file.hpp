// The files of a recording, and which of them are whose: nothing is written over, moved or removed
// that a recording did not write.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millpond/base/result.hpp"
#include "trace/writer.hpp"

namespace millpond::record {

// What a recording says of where it comes from; numbers are process ids, 0 where it does not say.
struct recording_facts {
  std::uint64_t process = 0;  // that wrote it
  std::uint64_t root = 0;     // that `millpond record` started
};
// Nothing for a folder, a link, a device and any file that is no recording. Reads its beginning
// only.
[[nodiscard]] std::optional<recording_facts> read_recording_facts(const std::string& path);

// Recordings of children of `path`: "server.1234.mpt" beside "server.mpt", written by process 1234.
[[nodiscard]] std::vector<std::string> recordings_of_children(const std::string& path);

// The file of a recording that begins: new, or a device. output_failure where something is there
// that this process did not record itself.
[[nodiscard]] result<std::unique_ptr<trace::sink>> make_recording_sink(const std::string& path,
                                                                       unsigned mode);

// Where a recording may be written: the file that `path` leads to, and the mode that it keeps.
struct recording_place {
  std::string path;
  unsigned mode = 0644;
};
// output_failure for a pipe, a folder and a file that is no recording.
[[nodiscard]] result<recording_place> find_recording_place(const std::string& path);

// Earlier recordings under the name of the new one: out of the way while the program runs, gone
// when it has left a recording, back in their places when it has not. What they are called
// meanwhile ("server.mpt.before") is a name that nothing had.
class earlier_recordings {
 public:
  explicit earlier_recordings(const std::string& path);
  ~earlier_recordings();
  earlier_recordings(const earlier_recordings&) = delete;
  earlier_recordings& operator=(const earlier_recordings&) = delete;
  void replaced() noexcept { replaced_ = true; }

 private:
  struct moved {
    std::string from, to;
  };
  void move(const std::string& old);
  std::vector<moved> moved_;
  bool replaced_ = false;
};

}  // namespace millpond::record
