// The trained tensors of the adapters of a model. Included by models' .cc only.
#pragma once
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/stream.h"
#include "server/model/artifact.h"
#include "server/trainer/adapter_linear.h"
#include "server/trainer/adapter_model.h"

namespace nibble::trainer {

// Parameter::lr_factor of the copy of a saved tensor: vectors learn as B does, as in PEFT.
inline double SavedLrFactor(const AdapterOptions& options, const std::vector<std::int64_t>& shape) {
  return shape.size() == 1 ? options.lora_plus_ratio : 1.0;
}

struct AdapterMatrices {
  torch::Tensor a;          // [r, K] f32 parameter
  torch::Tensor b;          // [N, r] f32 parameter
  torch::Tensor magnitude;  // undefined, or [N] f32 parameter of DoRA
};

class AdapterParameters {
 public:
  // Adds the adapter of rank `rank` of a linear [N, K]: A drawn by DrawAdapter, B and the magnitudes of DoRA 0.
  AdapterMatrices Add(const AdapterOptions& options, std::int64_t layer, model::LinearKind kind, std::int64_t rank,
                      std::int64_t rows, std::int64_t cols);
  // Gives the linear of a model with this config its adapter, if it is a target. Magnitudes of DoRA start as the norms
  // of the linear's weight: at the start DoRA changes nothing. Throws the kernel's error.
  void AddTo(AdapterLinear& linear, const AdapterOptions& options, std::int64_t layer, model::LinearKind kind,
             const model::ModelConfig& config, const kernels::Stream& stream);
  // Adds the copies of saved modules, which start as the base's values, in the order of SavedTensors. The result has
  // them by the names of the base's tensors. Throws StoppedError, and the errors of Artifact::FloatTensor.
  std::map<std::string, torch::Tensor> AddSaved(const AdapterOptions& options, const model::Artifact& base);
  // Makes the gradients, and appends the parameters with them: for CodedLinears::AddParameters.
  void AppendTo(std::vector<Parameter>& parameters);
  // As HoldGradients and ReleaseGradients (torch_bridge.h).
  void HoldGradients();
  void ReleaseGradients();

  std::vector<Parameter>& parameters() { return parameters_; }

 private:
  torch::Tensor Add(std::string name, std::vector<std::int64_t> shape, double lr_factor);

  std::vector<torch::Tensor> tensors_;
  std::vector<Parameter> parameters_;
};

}  // namespace nibble::trainer
