#include "server/model/bitnet_shape.h"

#include <algorithm>

#include "server/model/tensor_table.h"

namespace nibble::model {

ModelConfig BitNetShape(ModelConfig base, std::string_view preset) {
  if (preset == "bitnet-tips") {
    base.norms = NormPlacement::kLinear;
    base.linear_norm_eps = base.rms_norm_eps;
  } else if (preset == "bitnet-2b4t") {
    // The family stays that of the base, with the same biases and norms of q and k. Export chooses the matching
    // transformers family.
    base.norms = NormPlacement::kBlockAndSub;
    base.activation = Activation::kRelu2;
  }
  return base;
}

BitNetInfo BitNetInfoOf(std::string_view preset, int act_bits, const std::vector<std::string>& not_converted) {
  BitNetInfo info = {.act_bits = act_bits, .head_dtype = kBitNetFloatType};
  if (preset == "hf") info.scaling = kernels::RowScaling::kReciprocal;
  for (int k = 0; k < kNumLinearKinds; ++k) {
    const auto kind = static_cast<LinearKind>(k);
    if (std::find(not_converted.begin(), not_converted.end(), ShortName(kind)) != not_converted.end()) {
      info.float_linears.push_back(kind);
    }
  }
  return info;
}

}  // namespace nibble::model
