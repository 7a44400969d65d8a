// Runs a libFuzzer target with no libFuzzer: every file of the corpus, then mutations of them that
// depend on the seed alone. So the fuzz targets are compiled and run by every build, and a failure
// comes back.
//
// usage: fuzz_NAME [--mutations N] [--seed S] [--only I] FILE_OR_FOLDER...
// A crash prints the seed and the index; --only runs that mutation again and writes it to
// ./failing_input.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "base/random.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

// What is being run, for the handler of a crash; plain text made before each run.
char current[256] = "nothing yet\n";

void say_where(int signal_number) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, current, std::strlen(current));
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t place(millpond::random& random, const std::string& text) {
  return static_cast<std::size_t>(random.below(text.size()));
}

// One to eight small changes: what breaks parsers is a wrong byte, a number at its limit, a cut, a
// piece twice, a piece gone, or a piece of another file.
std::string mutate(std::string text, const std::vector<std::string>& corpus,
                   millpond::random& random) {
  static const char* const pieces[] = {"0",
                                       "-1",
                                       "18446744073709551615",
                                       "9223372036854775808",
                                       "\n",
                                       ",",
                                       "\"",
                                       "\r\n",
                                       "nan",
                                       "1e308",
                                       "0x",
                                       "",
                                       "\xff\xff\xff\xff"};
  for (std::uint64_t change = 0, count = random.between(1, 8); change < count; ++change) {
    if (text.empty()) text = corpus[random.below(corpus.size())];
    if (text.empty()) return text;
    const std::size_t at = place(random, text);
    const std::size_t length = std::min<std::size_t>(text.size() - at, random.between(1, 64));
    switch (random.below(7)) {
      case 0: text[at] = static_cast<char>(random.below(256)); break;
      case 1: text[at] = static_cast<char>(text[at] ^ (1 << random.below(8))); break;
      case 2: text.resize(at); break;
      case 3: text.insert(at, text.substr(at, length)); break;
      case 4: text.erase(at, length); break;
      case 5: text.replace(at, length, pieces[random.below(std::size(pieces))]); break;
      default: {
        const std::string& other = corpus[random.below(corpus.size())];
        if (other.empty()) break;
        const std::size_t from = place(random, other);
        text.insert(at, other.substr(from, random.between(1, 256)));
      }
    }
  }
  return text;
}

void run(const std::string& text) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
}

}  // namespace

int main(int count, char** arguments) {
  std::uint64_t mutations = 0, seed = 1;
  std::optional<std::uint64_t> only;
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    const auto number = [&] {
      return i + 1 < count ? std::strtoull(arguments[++i], nullptr, 10) : 0;
    };
    if (argument == "--mutations") {
      mutations = number();
    } else if (argument == "--seed") {
      seed = number();
    } else if (argument == "--only") {
      only = number();
    } else if (std::filesystem::is_directory(argument)) {
      for (const auto& entry : std::filesystem::directory_iterator(argument))
        files.push_back(entry.path());
    } else {
      files.emplace_back(argument);
    }
  }
  // The order of a folder differs from machine to machine; the mutations may not.
  std::sort(files.begin(), files.end());
  std::vector<std::string> corpus;
  for (const auto& file : files) corpus.push_back(read_file(file));
  if (corpus.empty()) {
    std::fprintf(stderr, "no corpus: name a folder or files\n");
    return 2;
  }
  for (int each : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(each, say_where);

  if (!only) {
    for (std::size_t i = 0; i < corpus.size(); ++i) {
      std::snprintf(current, sizeof current, "while running %s\n", files[i].c_str());
      run(corpus[i]);
    }
  }
  for (std::uint64_t i = only.value_or(0); i < (only ? *only + 1 : mutations); ++i) {
    millpond::random random(seed * 0x9e3779b97f4a7c15ULL + i);
    const std::string text = mutate(corpus[random.below(corpus.size())], corpus, random);
    std::snprintf(current, sizeof current,
                  "while running mutation %llu of seed %llu: --seed %llu --only %llu\n",
                  static_cast<unsigned long long>(i), static_cast<unsigned long long>(seed),
                  static_cast<unsigned long long>(seed), static_cast<unsigned long long>(i));
    if (only) std::ofstream("failing_input", std::ios::binary) << text;
    run(text);
  }
  std::printf("%zu files and %llu mutations ran\n", corpus.size(),
              static_cast<unsigned long long>(only ? 1 : mutations));
  return 0;
}
