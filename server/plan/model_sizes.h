// Sizes of a model that the plans of methods share. Private to server/plan and its tests.
#pragma once
#include <cstdint>

#include "server/model/artifact.h"
#include "server/model/model_config.h"

namespace nibble::plan {

struct ModelSizes {
  explicit ModelSizes(const model::ModelConfig& config);

  std::int64_t linears = 0;      // elements of all linears except the head
  std::int64_t linear_rows = 0;  // outputs of all these linears
  std::int64_t largest = 0;      // elements of the largest of these linears
  std::int64_t embedding = 0;    // elements of the embedding
  std::int64_t heads = 1;        // matrices of that size: 1 if the head is the embedding, else 2
  std::int64_t all = 0;          // parameters
};

// Bytes of temporary gradients of the embedding and the head, whose values have `element` bytes: none if they are
// f32, because functions then add to the parameters' own gradients; else three matrices in f32: one for the embedding,
// one for the head, and their sum.
std::int64_t TableGradientBytes(const ModelSizes& sizes, std::int64_t element);

// Bytes that the norms of q's and k's heads keep for a token in one layer until its backward pass: their inputs in f32,
// and a number per head.
std::int64_t HeadNormBytes(const model::ModelConfig& config);

// Bytes that a token keeps in one layer until its backward pass, if linears read float rows of `element` bytes each.
std::int64_t FloatTokenBytes(const model::ModelConfig& config, std::int64_t element);
// The same if the backward pass computes the outputs of norms and the product of gate and up again.
std::int64_t RecomputedTokenBytes(const model::ModelConfig& config, std::int64_t element);
// As FloatTokenBytes without the inputs of linears, if these are rows of codes. `element`: bytes of a value that the
// graph keeps for the backward pass. `norm_element`: of an input of a norm before attention or the MLP, or of a
// sub-norm. If each linear has a norm of its own, all norms keep their inputs in f32.
std::int64_t CodedGraphBytes(const model::ModelConfig& config, std::int64_t element, std::int64_t norm_element);
// As FloatTokenBytes, if linears read rows of int8 codes; `element` as in CodedGraphBytes.
std::int64_t CodedTokenBytes(const model::ModelConfig& config, std::int64_t element);
// The same for adapters, which compute values of the codes again.
std::int64_t CodedAdapterTokenBytes(const model::ModelConfig& config, std::int64_t element);

// Whether there is a norm before every linear layer.
bool NormsEachLinear(const model::ModelConfig& config);

// Bytes of a weight file; 0 if the format does not take this model.
double FileBytes(const model::ModelConfig& config, model::Format format, std::int64_t float_bytes);
double FileBytes(const model::ModelConfig& config, const model::ArtifactInfo& info, std::int64_t float_bytes);

}  // namespace nibble::plan
