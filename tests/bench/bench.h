// A small harness: checks each case, then measures roofs and cases in turns (so that a slowdown of the machine affects
// all alike), prints the median with its spread and the share of the roof, and writes JSON. "best" compares the fastest
// round with the fastest round of the roof: it is more reliable on a busy machine.
//   --threads N (default 2)   --isa plain|avx2|avx512   --rounds N (at least 5, default 7)
//   --window_ms N (per round of one case, default 30)
//   --filter TEXT   --json FILE   --commit TEXT   --peer DIR (libraries of a peer to compare with)
//   --clock wall|cpu (cpu: only with one thread; ignores other programs)
#pragma once
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/roofs.h"

namespace nibble::bench {

// Total size of the copies of a weight that a case with few rows cycles through: several times the last-level cache.
constexpr std::int64_t kColdBytes = std::int64_t{192} << 20;

enum class Roof { kRead, kInt8, kF32 };

struct Case {
  std::string name;
  Roof roof = Roof::kRead;
  double work = 0;                        // bytes (kRead) or operations per run; a multiply-add counts as two
  std::function<bool()> check;            // compares with the oracle; false fails the program
  std::function<void(std::int64_t)> run;  // gets the number of the call, to cycle through copies
};

// The op and its sizes; a size of 0 is left out.
inline std::string CaseName(std::string op, std::int64_t m, std::int64_t n, std::int64_t k) {
  for (const auto& [letter, size] : {std::pair{" M ", m}, {" N ", n}, {" K ", k}}) {
    if (size != 0) op += letter + std::to_string(size);
  }
  return op;
}

// Returns a function that makes the problem, from copies of the arguments, at its first call: a case that --filter
// leaves out takes no memory. The problem then lives as long as its case.
template <typename Problem, typename... Arguments>
auto Lazily(Arguments... arguments) {
  return [problem = std::make_shared<std::unique_ptr<Problem>>(), arguments...]() -> Problem& {
    if (*problem == nullptr) *problem = std::make_unique<Problem>(arguments...);
    return **problem;
  };
}

class Bench {
 public:
  Bench(int argc, char** argv) {
    for (int i = 1; i < argc; i += 2) {
      if (i + 1 == argc) {
        std::fprintf(stderr, "%s needs a value\n", argv[i]);
        std::exit(2);
      }
      const std::string flag = argv[i];
      const std::string value = argv[i + 1];
      if (flag == "--threads")
        threads_ = std::atoi(value.c_str());
      else if (flag == "--rounds")
        rounds_ = std::max(5, std::atoi(value.c_str()));
      else if (flag == "--window_ms")
        window_s_ = std::atof(value.c_str()) * 1e-3;
      else if (flag == "--clock" && (value == "wall" || value == "cpu"))
        clock_ = value == "cpu" ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
      else if (flag == "--filter")
        filter_ = value;
      else if (flag == "--json")
        json_ = value;
      else if (flag == "--commit")
        commit_ = value;
      else if (flag == "--peer")
        peer_ = value;
      else if (flag == "--isa" && kernels::ParseIsa(value))
        isa_ = std::min(isa_, *kernels::ParseIsa(value));
      else {
        std::fprintf(stderr, "unknown flag %s %s\n", argv[i], argv[i + 1]);
        std::exit(2);
      }
    }
    pool_ = std::make_unique<kernels::ThreadPool>(threads_);
    stream_.isa = isa_, stream_.pool = pool_.get();
  }
  const kernels::Stream& stream() const { return stream_; }
  int threads() const { return threads_; }
  const std::string& peer() const { return peer_; }  // empty: no comparison
  void Add(Case c) {
    if (c.name.find(filter_) != std::string::npos) cases_.push_back(std::move(c));
  }

  int Run() {  // exit code for main
    for (const Case& c : cases_) {
      if (c.check()) continue;
      std::fprintf(stderr, "%s: wrong result\n", c.name.c_str());
      return 1;
    }
    Roofs roofs(stream_, threads_);
    std::vector<std::vector<double>> roof_rate(3);  // by Roof
    std::vector<std::vector<double>> us(cases_.size());
    std::vector<std::int64_t> count(cases_.size(), 0);
    for (int round = 0; round < rounds_; ++round) {
      roof_rate[0].push_back(Rate([&] { return roofs.Read(); }));
      roof_rate[1].push_back(Rate([&] { return roofs.Int8(); }));
      roof_rate[2].push_back(Rate([&] { return roofs.F32(); }));
      for (std::size_t i = 0; i < cases_.size(); ++i) us[i].push_back(Time(cases_[i], count[i]));
    }
    std::printf("%s, %d threads, %s\nroofs: read %.1f GB/s, int8 %.0f GOP/s, f32 %.0f GFLOP/s\n", CpuName().c_str(),
                threads_, kernels::Name(isa_), Median(roof_rate[0]), Median(roof_rate[1]), Median(roof_rate[2]));
    std::printf("%-44s %12s %18s %16s %7s %7s\n", "case", "us", "min .. max", "rate", "of roof", "best");
    std::string json;
    for (std::size_t i = 0; i < cases_.size(); ++i) json += Report(cases_[i], us[i], roof_rate);
    if (!json.empty()) json.pop_back();  // the comma after the last case
    if (!json_.empty()) {
      std::ofstream(json_) << "{\"device\": \"" << CpuName() << "\", \"threads\": " << threads_ << ", \"isa\": \""
                           << kernels::Name(isa_) << "\", \"commit\": \"" << commit_ << "\", \"rounds\": " << rounds_
                           << ", \"read_gb_s\": " << Median(roof_rate[0])
                           << ", \"int8_gop_s\": " << Median(roof_rate[1])
                           << ", \"f32_gflop_s\": " << Median(roof_rate[2]) << ", \"cases\": [" << json << "]}\n";
    }
    return 0;
  }

 private:
  double Now() const {
    timespec t{};
    clock_gettime(clock_, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  }
  template <typename F>
  double Rate(F burst) const {
    const double start = Now(), work = burst();
    return work / (Now() - start) * 1e-9;
  }
  // Microseconds per call, over at least a window and 3 calls.
  double Time(const Case& c, std::int64_t& count) const {
    c.run(count++);
    const double start = Now();
    std::int64_t calls = 0;
    while (calls < 3 || (Now() - start) < window_s_) {
      c.run(count++);
      ++calls;
    }
    return (Now() - start) * 1e6 / static_cast<double>(calls);
  }
  static double Median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  }
  static std::string CpuName() {
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);) {
      if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
    }
    return "unknown";
  }
  static std::string Report(const Case& c, const std::vector<double>& us,
                            const std::vector<std::vector<double>>& roofs) {
    const double median = Median(us);
    const auto [low, high] =
        std::pair{*std::min_element(us.begin(), us.end()), *std::max_element(us.begin(), us.end())};
    const double rate = c.work / median * 1e-3;
    const std::vector<double>& roof = roofs[static_cast<std::size_t>(c.roof)];
    const double share = rate / Median(roof);
    const double best = c.work / low * 1e-3 / *std::max_element(roof.begin(), roof.end());
    const char* unit = c.roof == Roof::kRead ? "GB/s" : c.roof == Roof::kInt8 ? "GOP/s" : "GFLOP/s";
    std::printf("%-44s %12.1f %8.1f .. %6.1f %8.1f %-7s %6.1f%% %6.1f%%\n", c.name.c_str(), median, low, high, rate,
                unit, 100 * share, 100 * best);
    char text[512];
    std::snprintf(
        text, sizeof text,
        "{\"name\": \"%s\", \"us\": %.3f, \"us_min\": %.3f, \"us_max\": %.3f, \"rate\": %.3f, \"unit\": \"%s\", "
        "\"of_roof\": %.4f, \"best_of_roof\": %.4f},",
        c.name.c_str(), median, low, high, rate, unit, share, best);
    return text;
  }

  int threads_ = 2;
  int rounds_ = 7;
  double window_s_ = 0.03;
  clockid_t clock_ = CLOCK_MONOTONIC;
  kernels::Isa isa_ = kernels::DetectIsa();
  std::string filter_, json_, commit_, peer_;
  std::unique_ptr<kernels::ThreadPool> pool_;
  kernels::Stream stream_;
  std::vector<Case> cases_;
};

// Whether the op gives the same y on the bench's path and on the plain path, byte for byte.
template <typename Args, typename Op>
bool SameAsPlain(const Bench& bench, Args args, Op op, std::size_t out_bytes) {
  std::vector<std::uint8_t> fast(out_bytes), plain(out_bytes, 1);
  args.y.data = fast.data();
  kernels::Stream stream = bench.stream();
  const bool ran = op(args, stream).ok();
  args.y.data = plain.data();
  stream.isa = kernels::Isa::kPlain;
  return ran && op(args, stream).ok() && fast == plain;
}

}  // namespace nibble::bench
