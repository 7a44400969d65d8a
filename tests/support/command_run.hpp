// The built command, run as a user runs it, in a folder of its own that goes with the test.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace millpond::cli {

class command_run : public ::testing::Test {
 protected:
  struct answer {
    int status = -1;  // -1 where a signal ended it
    std::string out, err;
  };

  command_run() {
    std::string name = (std::filesystem::temp_directory_path() / "millpond_cli_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~command_run() override { std::filesystem::remove_all(folder_); }

  static std::string read_all(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Where the tests run; millpond_here: in the folder.
  answer millpond(const std::string& arguments) const { return shell("", arguments); }
  answer millpond_here(const std::string& arguments) const {
    return shell("cd " + folder_.string() + " && ", arguments);
  }
  // In a process that may have so many KiB of addresses.
  answer millpond_with_addresses(std::uint64_t kib, const std::string& arguments) const {
    return shell("ulimit -v " + std::to_string(kib) + " && ", arguments);
  }

  // A bash script in the folder, with the command as $M and this repository as $SOURCE; its status
  // is the script's.
  answer script(const std::string& text) const {
    write("script.bash",
          "cd " + folder_.string() +
              "\nM=" MILLPOND_BINARY_DIR "/millpond SOURCE=" MILLPOND_SOURCE_DIR "\n" + text);
    return run("bash " + (folder_ / "script.bash").string());
  }

  std::string write(const char* name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  static std::string trace(const char* name) {
    return std::string(MILLPOND_SOURCE_DIR) + "/data/traces/" + name + ".csv.gz";
  }

  std::filesystem::path folder_;

 private:
  answer shell(const std::string& before, const std::string& arguments) const {
    return run(before + MILLPOND_BINARY_DIR + "/millpond " + arguments);
  }
  answer run(const std::string& command) const {
    const auto out = folder_ / "out", err = folder_ / "err";
    const std::string line = command + " >" + out.string() + " 2>" + err.string() + " </dev/null";
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_all(out), read_all(err)};
  }
};

}  // namespace millpond::cli
