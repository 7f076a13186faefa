#pragma once
#include <string_view>

#include "kernels/dtype.h"
#include "server/model/model_config.h"

namespace nibble::model {

// Returns the architecture that a preset of BitNet training gives to a base: "native" leaves it unchanged;
// "bitnet-tips" puts a norm before every linear in place of the norms before the blocks; "bitnet-2b4t" adds norms
// before o_proj and down_proj and uses relu^2 as the activation (docs/numerics.md 5).
ModelConfig BitNetShape(ModelConfig base, std::string_view preset);

// BitNet training rounds keys, values, embedding and head to this type, as the ternary artifact does.
inline constexpr kernels::DType kBitNetFloatType = kernels::DType::kBF16;

}  // namespace nibble::model
