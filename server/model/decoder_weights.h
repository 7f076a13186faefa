// The weights of a decoder as the serving instantiation reads them. Views only: the owner keeps the memory (LoadedModel
// in the server, the trainer's tensors in the trainer).
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/formats/dense.h"
#include "kernels/formats/int8.h"
#include "kernels/formats/nf4.h"
#include "kernels/formats/ternary.h"
#include "kernels/matrix.h"
#include "server/model/tensor_table.h"

namespace nibble::model {

// y += scaling * (x * a^T) * b^T. The products have a fixed order: a different last bit here would change roundings to
// bf16 in all later layers, and the trainer and nibbled would report different losses.
struct LoraWeight {
  kernels::PackedDenseWeight a;  // [r, K] f32
  kernels::PackedDenseWeight b;  // [N, r] f32
  float scaling = 0;
  const float* dora_factor = nullptr;  // [N] of DoRA, which changes the whole output (dora.h); null without it
};

struct LinearWeight {
  enum class Kind { kLibrary, kDense, kInt8, kInt8Weight, kNf4, kTernary };
  Kind kind = Kind::kLibrary;
  kernels::ConstMatrix library;          // kLibrary: [N, K] as stored, for MatmulLibrary (BEST_EFFORT)
  kernels::PackedDenseWeight dense;      // kDense: float head and linears with promised bits (glossary.md: promise)
  kernels::PackedInt8Weight int8;        // kInt8: multiplied by codes; kInt8Weight: by float rows
  kernels::Nf4Weight nf4;                // kNf4
  kernels::PackedTernaryWeight ternary;  // kTernary
  const float* bias = nullptr;           // [N]
  std::optional<LoraWeight> lora;

  bool reads_codes() const { return kind == Kind::kInt8 || kind == Kind::kTernary; }
};

struct LayerWeights {
  std::array<const float*, kNumNorms> norms = {};  // indexed by Norm; null if the model lacks it
  std::array<LinearWeight, kNumLinearKinds> linears;

  const float* norm(Norm which) const { return norms[static_cast<std::size_t>(which)]; }
  const LinearWeight& linear(LinearKind kind) const { return linears[static_cast<std::size_t>(kind)]; }
};

struct DecoderWeights {
  kernels::ConstMatrix embedding;            // float; unset with embedding_int8
  kernels::PackedInt8Weight embedding_int8;  // the codes of a tied int8 head
  std::vector<LayerWeights> layers;
  const float* final_norm = nullptr;
  LinearWeight head;
  const float* rope_cos = nullptr;  // [rope_positions, head_dim / 2]
  const float* rope_sin = nullptr;
  std::int64_t rope_positions = 0;
  // docs/formats.md: the residual stream and norms are f32 in every format; linears read rows of this type (int8 and
  // ternary ones: quantized rows, unless the model is weight-only) and write f32; logits are f32.
  kernels::DType input_dtype = kernels::DType::kF32;
  kernels::DType kv_dtype = kernels::DType::kF32;
  int act_outliers = 0;
  kernels::QuantizeOptions act_quantize;  // of the rows that integer linears read
};

}  // namespace nibble::model
