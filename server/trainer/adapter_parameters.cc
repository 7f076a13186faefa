#include "server/trainer/adapter_parameters.h"

#include <torch/types.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "server/model/saved_modules.h"
#include "server/trainer/random_weights.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {

using torch::Tensor;

AdapterMatrices AdapterParameters::Add(const AdapterOptions& options, std::int64_t layer, model::LinearKind kind,
                                       std::int64_t rank, std::int64_t rows, std::int64_t cols) {
  AdapterMatrices made;
  made.a = Add(model::LoraAName(layer, kind), {rank, cols}, /*lr_factor=*/1.0);
  made.b = Add(model::LoraBName(layer, kind), {rows, rank}, options.lora_plus_ratio);
  if (options.adapter.dora) {
    const std::string name = model::LoraModule(model::ModulePath(layer, kind)) + model::kMagnitudeSuffix;
    made.magnitude = Add(name, {rows}, options.lora_plus_ratio);  // vectors learn as B does, as in PEFT
  }
  const std::int64_t number = layer * model::kNumLinearKinds + static_cast<std::int64_t>(kind);
  DrawAdapter(made.a, options.init_seed, static_cast<std::uint64_t>(number));
  return made;
}

void AdapterParameters::AddTo(AdapterLinear& linear, const AdapterOptions& options, std::int64_t layer,
                              model::LinearKind kind, const model::ModelConfig& config, const kernels::Stream& stream) {
  const std::optional<model::LinearAdapter> adapter = options.adapter.On(model::ModulePath(layer, kind));
  if (!adapter.has_value()) return;
  linear.scaling = adapter->scaling;
  linear.dropout = options.adapter.dropout;
  const AdapterMatrices made =
      Add(options, layer, kind, adapter->rank, OutFeatures(config, kind), InFeatures(config, kind));
  linear.lora_a = made.a;
  linear.lora_b = made.b;
  if (!made.magnitude.defined()) return;
  linear.magnitude = made.magnitude;
  linear.RefreshDora(stream);
  linear.magnitude.detach().copy_(linear.norms);
}

std::map<std::string, Tensor> AdapterParameters::AddSaved(const AdapterOptions& options, const model::Artifact& base) {
  std::map<std::string, Tensor> copies;
  for (const model::TensorSpec& tensor : model::SavedTensors(base.config(), options.adapter)) {
    ThrowIfCancelled(options.cancelled);
    const auto values = base.FloatTensor(tensor.name);
    ThrowIfError(values.status());
    const Tensor copy = Add(model::SavedName(tensor.name), tensor.shape, SavedLrFactor(options, tensor.shape));
    std::copy(values->begin(), values->end(), copy.data_ptr<float>());
    copies[tensor.name] = copy;
  }
  return copies;
}

void AdapterParameters::AppendTo(std::vector<Parameter>& parameters) {
  HoldGradients();
  parameters.insert(parameters.end(), parameters_.begin(), parameters_.end());
}
void AdapterParameters::HoldGradients() { trainer::HoldGradients(tensors_, parameters_); }
void AdapterParameters::ReleaseGradients() { trainer::ReleaseGradients(tensors_, parameters_); }

Tensor AdapterParameters::Add(std::string name, std::vector<std::int64_t> shape, double lr_factor) {
  Tensor tensor = torch::zeros(shape, torch::kFloat32).requires_grad_(true);
  tensors_.push_back(tensor);
  parameters_.push_back(
      {.name = std::move(name), .shape = std::move(shape), .value = {}, .grad = {}, .lr_factor = lr_factor});
  return tensor;
}

}  // namespace nibble::trainer
