// The options of a benchmark. A type of our own, so that the library that reads them is compiled
// once and not with every benchmark.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace millpond::bench {

class command_line {
 public:
  explicit command_line(const std::string& benchmark);
  ~command_line();

  // What stands in `into` beforehand is the default, and the help says it.
  void option(const char* name, std::string& into, const char* help);
  void option(const char* name, double& into, const char* help);
  void option(const char* name, std::uint64_t& into, const char* help);
  void option(const char* name, std::vector<double>& into, const char* help);  // parted by commas
  void option(const char* name, std::vector<std::string>& into, const char* help);
  void one_of(const char* name, std::string& into, std::vector<std::string> choices,
              const char* help);
  void flag(const char* name, bool& into, const char* help);
  // The words that belong to no option.
  enum class inputs : std::uint8_t { some, at_least_one };
  void words(std::vector<std::string>& into, inputs how_many, const char* help);

  // Ends the program with 2 where they cannot be read, and with 0 after the help.
  void read(int count, char** arguments);

 private:
  struct reader;
  std::unique_ptr<reader> reader_;
};

}  // namespace millpond::bench
