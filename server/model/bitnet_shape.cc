#include "server/model/bitnet_shape.h"

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

}  // namespace nibble::model
