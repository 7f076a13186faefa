// Makes float master weights ternary, exactly once. Ternarizing is not idempotent (the mean of |codes * s| is smaller
// than s), so weights that are already ternary are refused. Included by server/convert/*.cc only.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/formats/int8.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::convert {

struct TernaryWeight {
  std::vector<std::uint8_t> rows;  // [N, ceil(K / 4)], as artifacts store codes (kernels/formats/ternary.h)
  float scale = 0;
};

// weight: the whole tensor, [N, K] f32 or bf16. Gives the same bits as kernels::Ternarize, which training uses; with
// kReciprocal, the scale is its ReciprocalScale.
// Errors: InvalidArgument (not finite; the tensor named), FailedPrecondition (ALREADY_TERNARY).
absl::StatusOr<TernaryWeight> TernarizeOnce(const std::string& name, const kernels::ConstMatrix& weight,
                                            kernels::RowScaling scaling, const kernels::Stream& stream);

}  // namespace nibble::convert
