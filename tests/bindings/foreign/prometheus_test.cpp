// A pool's metrics over HTTP by prometheus-cpp, asked for on a socket, and the same numbers as the
// library's own text.
#include "millpond/bindings/prometheus.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <prometheus/exposer.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>

#include "millpond/base/units.hpp"
#include "millpond/memory/adaptors.hpp"
#include "millpond/pool/pool.hpp"
#include "millpond/sim/simulated_gpu.hpp"

namespace {

void check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what.c_str());
  std::exit(1);
}

std::string get(int port, const char* path) {
  const int at = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<std::uint16_t>(port));
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  check(connect(at, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0,
        "the endpoint answers");
  const std::string ask = std::string("GET ") + path + " HTTP/1.0\r\n\r\n";
  check(write(at, ask.data(), ask.size()) == static_cast<ssize_t>(ask.size()),
        "it takes the question");
  std::string answer;
  char piece[4096];
  for (ssize_t got; (got = read(at, piece, sizeof piece)) > 0;)
    answer.append(piece, static_cast<std::size_t>(got));
  close(at);
  return answer;
}

// name{sorted labels} -> value; comments and headers left out.
std::map<std::string, double> values(const std::string& text) {
  std::map<std::string, double> made;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("millpond_")) continue;
    const std::size_t blank = line.rfind(' ');
    std::string key = line.substr(0, blank);
    // Labels in any order are the same.
    if (const std::size_t open = key.find('{'); open != std::string::npos) {
      std::map<std::string, int> labels;
      std::istringstream parts(key.substr(open + 1, key.size() - open - 2));
      for (std::string part; std::getline(parts, part, ',');) labels[part] = 1;
      key.resize(open);
      for (const auto& [label, ignored] : labels) key += "," + label;
    }
    made[key] = std::stod(line.substr(blank + 1));
  }
  return made;
}

}  // namespace

int main() {
  const auto gpu = millpond::simulated_gpu::create().value();
  millpond::stream_handle stream = nullptr;
  check(gpu->bind_thread().ok() && gpu->stream_create(&stream).ok(), "a simulated GPU");
  const auto pool = millpond::pool::create(gpu).value();
  millpond::statistics_resource counted(*pool);
  void* const kept = counted.allocate(3 * millpond::MiB, stream);
  for (const std::uint64_t bytes : {1000, 70'000})
    counted.deallocate(counted.allocate(bytes, stream), bytes, stream);

  const std::vector<millpond::metric_source> sources{{"all", pool.get()}, {"counted", &counted}};
  const auto metrics = std::make_shared<millpond::prometheus_collectable>(sources);
  prometheus::Exposer exposer("127.0.0.1:0");
  exposer.RegisterCollectable(metrics);
  const std::string answer = get(exposer.GetListeningPorts().at(0), "/metrics");
  check(answer.find("200 OK") != std::string::npos, "status 200");
  const auto served = values(answer), own = values(millpond::metrics_text(sources));
  check(own.size() > 40, "there are metrics");
  for (const auto& [name, value] : own) {
    const auto found = served.find(name);
    check(found != served.end(), name + " is served");
    check(found->second == value, name + ": " + std::to_string(found->second) + " served, " +
                                      std::to_string(value) + " reported");
  }
  check(served.size() == own.size(), "and nothing else of millpond's");
  counted.deallocate(kept, 3 * millpond::MiB, stream);
  std::printf("%zu samples are the same over HTTP\n", own.size());
}
