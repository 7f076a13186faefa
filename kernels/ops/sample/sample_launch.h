// Arguments of sample.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include <cstdint>

#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// Temperature 0 is greedy (ties to the lower id). Filters apply in the order top_k, top_p, min_p, as in transformers:
// top_k 0, top_p 1 and min_p 0 are off. `counter` is the index of the token within its request, so the same seed gives
// the same tokens, whatever the rest of the batch (Philox4x32-10 of seed and counter).
struct SampleParams {
  float temperature = 0;
  std::int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  std::uint64_t seed = 0;
  std::uint64_t counter = 0;
};

struct SampleArgs {
  ConstMatrix logits;
  const SampleParams* params = nullptr;
  std::int32_t* token = nullptr;
  const std::uint32_t* allowed = nullptr;

  const std::uint32_t* AllowedWords(std::int64_t row) const { return allowed + row * ((logits.cols + 31) / 32); }
};

using SampleKernel = LaunchResult(const SampleArgs& args, const Stream& stream);

}  // namespace nibble::kernels
