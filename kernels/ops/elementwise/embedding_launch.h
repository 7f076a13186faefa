// Arguments of embedding.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include <cstdint>

#include "kernels/formats/int8.h"
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct EmbeddingArgs {
  const std::int32_t* ids = nullptr;
  std::int64_t num_ids = 0;
  ConstMatrix table;        // the float form; data is null when the int8 form is used
  PackedInt8Weight packed;  // the int8 form: an embedding tied to an int8 head is read from the same codes
  Matrix out;
};

using EmbeddingKernel = LaunchResult(const EmbeddingArgs& args, const Stream& stream);

}  // namespace nibble::kernels
