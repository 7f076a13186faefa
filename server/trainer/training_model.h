// The trained model as the training loop sees it: no torch in this header.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/data/loader.h"
#include "server/model/decoder_weights.h"
#include "server/trainer/tensor_ref.h"

namespace nibble::trainer {

// One trained tensor; the model owns the memory.
struct Parameter {
  std::string name;  // its name in the result: "base_model.model.<path>.lora_A.weight" as in PEFT, or the model's own
  std::vector<std::int64_t> shape;
  TensorRef value;
  TensorRef grad;
  double lr_factor = 1.0;  // multiplies the run's learning rate
  // Of an int8 value; see StoreDraws.
  bool to_nearest = false;
  bool one_scale = false;
};

// One thread.
class TrainingModel {
 public:
  virtual ~TrainingModel() = default;

  virtual std::vector<Parameter>& parameters() = 0;
  void ZeroGrad(const kernels::Stream& stream = {}) {
    constexpr std::int64_t kGrain = 1 << 18;  // minimum bytes per thread
    for (Parameter& parameter : parameters()) {
      std::byte* grad = parameter.grad.bytes().data();
      // Zero bytes are zeros of every type.
      stream.ParallelFor(parameter.grad.num_bytes(), kGrain, [grad](std::int64_t begin, std::int64_t end) {
        std::fill(grad + begin, grad + end, std::byte{0});
      });
    }
  }
  // Called before the passes of an optimizer step. `step`: number of complete steps of the run, so a resumed run
  // continues where it stopped.
  virtual void BeginStep(std::int64_t /*step*/) {}
  // Recomputes what is derived from the parameters. Must be called after every change of parameters, before the calls
  // below.
  virtual absl::Status Refresh() = 0;
  // Adds the gradient of scale * (sum of the losses of the batch) to every grad; returns the sum without `scale`.
  // `draw` is the number of the micro-batch in the whole run, which determines random draws. Errors: Cancelled,
  // Internal, ResourceExhausted (out of memory).
  virtual absl::StatusOr<double> ForwardBackward(const data::MicroBatch& batch, double scale, std::uint64_t draw) = 0;
  // The serving form of the current parameters. Valid until the next Refresh or ForwardBackward.
  virtual const model::DecoderWeights& ServingWeights() = 0;
};

}  // namespace nibble::trainer
