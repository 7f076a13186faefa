// A frozen base with trained adapters (methods qlora and lora) as the training loop sees it: no torch in this header.
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

struct AdapterOptions {
  model::AdapterConfig adapter = {};
  std::uint64_t init_seed = 0;
  double lora_plus_ratio = 1.0;  // Parameter::lr_factor of B
  std::uint64_t dropout_seed = 0;
  bool bf16_compute = true;
  bool activation_checkpointing = false;
  base::Cancelled cancelled = {};  // TrainingContext::cancelled; also called for every layer while the model is made
};

class AdapterModel : public TrainingModel {
 public:
  // `base` is an nf4, bf16 or f32 artifact. A is drawn by DrawAdapter (random_weights.h); B is 0; the magnitudes of
  // DoRA are the norms of the base's rows; copies of saved modules are the base's tensors. With bf16 compute, the
  // linears of an f32 base are rounded once for the products of training. Errors: InvalidArgument (another base,
  // or a head that is not float), those of Artifact::Open, Cancelled, Internal, ResourceExhausted (out of memory).
  static absl::StatusOr<std::unique_ptr<AdapterModel>> Create(std::shared_ptr<const model::LoadedModel> base,
                                                              const AdapterOptions& options,
                                                              const kernels::Stream& stream);

  // Frees everything except the values of the parameters: the base (once the caller releases it too), gradients and
  // scratch memory. Afterwards only parameters() may be called.
  virtual void Release() = 0;
  // Logprobs of tokens[1..] by the training instantiation, without dropout. Errors: as ForwardBackward.
  virtual absl::StatusOr<std::vector<float>> TrainingLogprobs(const std::vector<std::int32_t>& tokens) = 0;
};

}  // namespace nibble::trainer
