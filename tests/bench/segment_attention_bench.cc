// Measures the cost of packing for attention in training, forward and backward: compares a row of many short examples
// with its first example alone, and a row of 4100 tokens with one of 4096, a multiple of 64. Prints the median time and
// the peak of torch's memory. Fails if the results of the first example in the row differ from those of the example
// alone, or if a cost is ten times its bound.
//   --threads N   --rounds N (at least 5)   --tokens N (per example, default 500)   --examples N (default 16)
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/isa.h"
#include "kernels/launch_counter.h"
#include "server/trainer/segment_attention.h"
#include "server/trainer/torch_runtime.h"
#include "tests/support/torch_memory.h"

namespace {

using nibble::trainer::ApplySegmentAttention;
using torch::Tensor;

constexpr double kBound = 1.2;  // on both ratios: packed row to sum of its examples, 4100 to 4096 tokens

struct Shape {
  const char* model;
  std::int64_t heads, kv_heads, dim;
};

struct Run {
  double seconds = 0;
  std::int64_t peak_bytes = 0;
  std::vector<Tensor> results;  // the output and the three gradients
};

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

Tensor Random(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn({rows, cols});
}

std::vector<Tensor> Pass(const std::vector<Tensor>& inputs, const std::vector<std::int64_t>& segments,
                         const Shape& shape, const nibble::kernels::Stream& stream) {
  nibble::trainer::TrainingContext context;
  context.stream = stream;
  std::vector<Tensor> leaves;
  for (std::size_t i = 0; i < 3; ++i) leaves.push_back(inputs[i].detach().requires_grad_());
  nibble::model::ModelConfig config;
  config.num_heads = shape.heads;
  config.num_kv_heads = shape.kv_heads;
  config.head_dim = shape.dim;
  const auto paged = nibble::trainer::PagedSegments::Create(config, nibble::kernels::DType::kBF16, segments);
  if (!paged.ok()) throw std::runtime_error(std::string(paged.status().message()));
  const Tensor y = ApplySegmentAttention(leaves[0], leaves[1], leaves[2], **paged, shape.heads, shape.kv_heads, context,
                                         torch::kBFloat16);
  std::vector<Tensor> results = torch::autograd::grad({y}, leaves, {inputs[3].to(torch::kBFloat16)});
  results.insert(results.begin(), y.detach());
  return results;
}

// One sequence of `rows` tokens: q, k, v and the gradient of the output.
std::vector<Tensor> Inputs(std::int64_t rows, const Shape& shape) {
  const std::int64_t q = shape.heads * shape.dim, kv = shape.kv_heads * shape.dim;
  return {Random(rows, q, 1), Random(rows, kv, 2), Random(rows, kv, 3), Random(rows, q, 4)};
}

void Print(const Shape& shape, const std::string& name, double seconds, double bytes) {
  std::printf("%-16s %-22s %10.2f %10.2f\n", shape.model, name.c_str(), seconds * 1e3, bytes / (1 << 20));
}

// Returns false if a cost is ten times its bound.
bool PrintRatio(const Shape& shape, const std::string& name, double time, double memory) {
  std::printf("%-16s %-22s %10.3f %10.3f   bound %.1f\n", shape.model, name.c_str(), time, memory, kBound);
  return time < 10 * kBound && memory < 10 * kBound;
}

Run Measure(const std::vector<Tensor>& inputs, const std::vector<std::int64_t>& segments, const Shape& shape,
            int rounds, const nibble::kernels::Stream& stream) {
  Run run;
  run.results = Pass(inputs, segments, shape, stream);
  {
    nibble::support::TorchMemory memory;
    Pass(inputs, segments, shape, stream);
    run.peak_bytes = memory.peak_bytes();
  }
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const double began = Now();
    Pass(inputs, segments, shape, stream);
    times.push_back(Now() - began);
  }
  run.seconds = Median(std::move(times));
  return run;
}

}  // namespace

int main(int argc, char** argv) {
  int threads = 2, rounds = 9;
  std::int64_t tokens = 500, examples = 16;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const int value = std::atoi(argv[i + 1]);
    if (flag == "--threads")
      threads = value;
    else if (flag == "--rounds")
      rounds = std::max(5, value);
    else if (flag == "--tokens")
      tokens = value;
    else if (flag == "--examples")
      examples = value;
    else {
      std::fprintf(stderr, "unknown flag %s\n", flag.c_str());
      return 2;
    }
  }
  static nibble::kernels::LaunchCounter launches;  // torch counts into it until the process ends
  nibble::trainer::InitTorch(threads, &launches);
  const auto pool = nibble::trainer::MakeTorchThreadPool();
  const nibble::kernels::Stream stream = {
      .isa = nibble::kernels::DetectIsa(), .pool = pool.get(), .launches = &launches};
  std::printf("%d threads, bf16, forward and backward, medians of %d\n", threads, rounds);
  std::printf("%-16s %-22s %10s %10s\n", "model", "case", "ms", "peak MiB");
  bool in_bounds = true;
  for (const Shape& shape : {Shape{"SmolLM2-135M", 9, 3, 64}, Shape{"Llama-3-8B", 32, 8, 128}}) {
    const std::int64_t total = tokens * examples;
    const std::vector<Tensor> row = Inputs(total, shape);
    std::vector<std::int64_t> segments(static_cast<std::size_t>(examples) + 1);
    for (std::size_t s = 0; s < segments.size(); ++s) segments[s] = static_cast<std::int64_t>(s) * tokens;
    std::vector<Tensor> one;
    for (const Tensor& t : row) one.push_back(t.narrow(0, 0, tokens).clone());
    const Run packed = Measure(row, segments, shape, rounds, stream);
    const Run alone = Measure(one, {0, tokens}, shape, rounds, stream);
    for (std::size_t i = 0; i < packed.results.size(); ++i) {
      if (torch::equal(packed.results[i].narrow(0, 0, tokens), alone.results[i])) continue;
      std::fprintf(stderr, "%s: the results of a packed example differ from those of the example alone\n", shape.model);
      return 1;
    }
    const double n = static_cast<double>(examples);
    Print(shape, "one example", alone.seconds, static_cast<double>(alone.peak_bytes));
    Print(shape, "a row of " + std::to_string(examples), packed.seconds, static_cast<double>(packed.peak_bytes));
    in_bounds &= PrintRatio(shape, "row / sum of examples", packed.seconds / (n * alone.seconds),
                            static_cast<double>(packed.peak_bytes) / (n * static_cast<double>(alone.peak_bytes)));
    Run whole[2];
    for (const int odd : {0, 1}) {
      const std::int64_t length = 4096 + 4 * odd;
      whole[odd] = Measure(Inputs(length, shape), {0, length}, shape, rounds, stream);
      Print(shape, std::to_string(length) + " tokens", whole[odd].seconds, static_cast<double>(whole[odd].peak_bytes));
    }
    in_bounds &= PrintRatio(shape, "4100 / 4096 tokens", whole[1].seconds / whole[0].seconds,
                            static_cast<double>(whole[1].peak_bytes) / static_cast<double>(whole[0].peak_bytes));
  }
  if (!in_bounds) std::fprintf(stderr, "a cost is ten times its bound\n");
  return in_bounds ? 0 : 1;
}
