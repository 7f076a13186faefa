#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "kernels/dtype.h"
#include "server/model/artifact.h"
#include "server/model/model_config.h"

namespace nibble::model {

// Returns the architecture that a preset of BitNet training gives to a base: "native" leaves it unchanged;
// "bitnet-tips" puts a norm before every linear in place of the norms before the blocks; "bitnet-2b4t" adds norms
// before o_proj and down_proj and uses relu^2 as the activation; "hf" leaves it unchanged too (docs/numerics.md 5).
ModelConfig BitNetShape(ModelConfig base, std::string_view preset);

// BitNet training rounds keys, values, embedding and head to this type, as the ternary artifact does.
inline constexpr kernels::DType kBitNetFloatType = kernels::DType::kBF16;

// The settings of the model that BitNet training makes. Preset "hf" has transformers' scales. not_converted: last names
// of the linears that stay float; the head, which always does, may be among them.
BitNetInfo BitNetInfoOf(std::string_view preset, int act_bits, const std::vector<std::string>& not_converted);

}  // namespace nibble::model
