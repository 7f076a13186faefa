#include "server/trainer/adapter_parameters.h"

#include <torch/types.h>

#include <utility>

#include "server/trainer/random_weights.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {

using torch::Tensor;

AdapterMatrices AdapterParameters::Add(const AdapterOptions& options, std::int64_t layer, model::LinearKind kind,
                                       std::int64_t rows, std::int64_t cols) {
  AdapterMatrices made;
  made.a = Add(model::LoraAName(layer, kind), options.adapter.rank, cols);
  made.b = Add(model::LoraBName(layer, kind), rows, options.adapter.rank);
  parameters_.back().lr_factor = options.lora_plus_ratio;
  const std::int64_t number = layer * model::kNumLinearKinds + static_cast<std::int64_t>(kind);
  DrawAdapter(made.a, options.init_seed, static_cast<std::uint64_t>(number));
  return made;
}

void AdapterParameters::HoldGradients() { trainer::HoldGradients(tensors_, parameters_); }
void AdapterParameters::ReleaseGradients() { trainer::ReleaseGradients(tensors_, parameters_); }

Tensor AdapterParameters::Add(std::string name, std::int64_t rows, std::int64_t cols) {
  Tensor tensor = torch::zeros({rows, cols}, torch::kFloat32).requires_grad_(true);
  tensors_.push_back(tensor);
  parameters_.push_back({std::move(name), {rows, cols}, {}, {}});
  return tensor;
}

}  // namespace nibble::trainer
