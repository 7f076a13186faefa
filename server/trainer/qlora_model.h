// The QLoRA model as the training loop sees it: no torch in this header.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/model/adapter.h"
#include "server/model/loaded_model.h"
#include "server/trainer/training_model.h"

namespace nibble::trainer {

struct QLoraOptions {
  model::AdapterConfig adapter;
  std::uint64_t init_seed = 0;
  double lora_plus_ratio = 1.0;  // Parameter::lr_factor of B
  std::uint64_t dropout_seed = 0;
  bool bf16_compute = true;
  bool activation_checkpointing = false;
  base::Cancelled cancelled = {};  // AutogradContext::cancelled; also called for every layer while the model is made
};

class QLoraModel : public TrainingModel {
 public:
  // `base` must be an nf4 artifact. A is drawn from U(-1/sqrt(in), 1/sqrt(in)) by Philox(seed, element), with the
  // linear's number as the stream; B is 0.
  static absl::StatusOr<std::unique_ptr<QLoraModel>> Create(std::shared_ptr<const model::LoadedModel> base,
                                                            const QLoraOptions& options, const kernels::Stream& stream);

  // Frees everything except the values of the parameters: the base (once the caller releases it too), gradients and
  // scratch memory. Afterwards only parameters() may be called.
  virtual void Release() = 0;
  // Logprobs of tokens[1..] by the training instantiation, without dropout. Errors: as ForwardBackward.
  virtual absl::StatusOr<std::vector<float>> TrainingLogprobs(const std::vector<std::int32_t>& tokens) = 0;
};

}  // namespace nibble::trainer
