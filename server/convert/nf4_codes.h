// The nf4 form of one weight, as an artifact stores it. Included by server/convert/*.cc only.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/formats/nf4.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/convert/merge.h"
#include "server/model/nf4_options.h"

namespace nibble::convert {

struct Nf4Codes {
  std::int64_t rows = 0;  // N
  std::int64_t cols = 0;  // K
  model::Nf4Options form;
  std::vector<std::uint8_t> codes;  // [N, ceil(K / 2)]
  std::vector<float> absmax;        // [N, blocks]: the scales that serving uses, after double quantization
  // With double quantization: the stored form of the scales.
  std::vector<std::int8_t> absmax_codes;
  std::vector<float> factor;
  std::vector<float> offset;  // [1]

  kernels::Nf4Weight weight() const { return {codes.data(), absmax.data(), rows, cols, form.block}; }
};

// Quantizes all rows. `cancelled` is checked before every block of rows.
absl::StatusOr<Nf4Codes> MakeNf4Codes(WeightReader& weight, const model::Nf4Options& form,
                                      const kernels::Stream& stream, const base::Cancelled& cancelled);

}  // namespace nibble::convert
