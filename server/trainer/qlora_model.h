// The QLoRA model as the training loop sees it: no torch in this header.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/data/loader.h"
#include "server/model/adapter.h"
#include "server/model/decoder_weights.h"
#include "server/model/loaded_model.h"

namespace nibble::trainer {

// One trained tensor; memory is the model's.
struct Parameter {
  std::string name;  // as PEFT names it: base_model.model.<path>.lora_A.weight
  std::vector<std::int64_t> shape;
  std::span<float> value;
  std::span<float> grad;
};

struct QLoraOptions {
  model::AdapterConfig adapter;
  std::uint64_t init_seed = 0;
  std::uint64_t dropout_seed = 0;
  bool bf16_compute = true;
  bool activation_checkpointing = false;
};

// One thread.
class QLoraModel {
 public:
  // `base` is an nf4 artifact; A is drawn from U(-1/sqrt(in), 1/sqrt(in)) by Philox(seed, element) of each tensor, B is 0.
  static absl::StatusOr<std::unique_ptr<QLoraModel>> Create(std::shared_ptr<const model::LoadedModel> base,
                                                            const QLoraOptions& options, const kernels::Stream& stream);
  virtual ~QLoraModel() = default;

  virtual std::vector<Parameter>& parameters() = 0;
  virtual void ZeroGrad() = 0;
  // Adds the gradient of scale * (sum of the losses of the batch) to every grad; returns that sum. `draw` numbers the
  // micro-batch in the whole run: dropout is drawn by it. Errors: Internal, ResourceExhausted (out of memory).
  virtual absl::StatusOr<double> ForwardBackward(const data::MicroBatch& batch, double scale, std::uint64_t draw) = 0;
  // The serving form: the base with the adapter as it is now. Good until the model changes or goes.
  virtual const model::DecoderWeights& ServingWeights() = 0;
};

}  // namespace nibble::trainer
