#pragma once
#include <string_view>

#include "kernels/dtype.h"
#include "server/model/model_config.h"

namespace nibble::model {

// What a preset of BitNet training makes of a base's architecture: "native" leaves it as it is; "bitnet-tips" puts a norm before
// every linear in place of those before the blocks; "bitnet-2b4t" adds norms before o_proj and down_proj and takes relu^2 for
// the activation (docs/numerics.md 5).
ModelConfig BitNetShape(ModelConfig base, std::string_view preset);

// What BitNet training rounds keys, values, embedding and head to, as the ternary artifact does.
inline constexpr kernels::DType kBitNetFloatType = kernels::DType::kBF16;

}  // namespace nibble::model
