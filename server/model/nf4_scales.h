// The scales of an nf4 weight in an artifact.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/stream.h"
#include "server/model/artifact.h"

namespace nibble::model {

// Reads the scales [rows, Nf4RowBlocks(cols, block)] of the weight `name`, with double quantization undone. Errors:
// DataLoss, those of double_dequantize.
absl::Status ReadNf4Scales(const Artifact& artifact, const std::string& name, std::int64_t rows, std::int64_t cols,
                           const kernels::Stream& stream, float* scales);

}  // namespace nibble::model
