// The optimizer of a run: the moments that a tensor needs, and one step. Each element is computed
// on its own by a fixed sequence of operations, so that any number of threads and any resume give the same bits.
#pragma once
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/stream.h"
#include "server/jobs/job_spec.h"
#include "server/trainer/adamw.h"
#include "server/trainer/int8_values.h"
#include "server/trainer/tensor_ref.h"

namespace nibble::trainer {

class Optimizer {
 public:
  // `config` must be validated.
  explicit Optimizer(const jobs::OptimConfig& config);

  // Zeros for a tensor of `count` elements: two moments for AdamW, one for SGD and Lion, whose `v` has no memory. With
  // adamw_8bit, tensors of fewer than kMin8BitElements keep f32 moments, as in bitsandbytes and torchao.
  Moments MakeMoments(std::int64_t count) const;
  // Unimplemented unless Step can train this tensor. `name` is for the message.
  absl::Status Check(std::string_view name, const TensorRef& value, const TensorRef& grad,
                     const Moments& moments) const;
  // One step (numbered from 1) with the learning rate lr. The weight decay is decoupled: first p -= lr * weight_decay *
  // p. Then
  //   adamw, adamw_8bit  AdamWStep
  //   sgd                m = beta1 * m + g;  p -= lr * m
  //   lion               p -= lr * sign(beta1 * m + (1 - beta1) * g);  m = beta2 * m + (1 - beta2) * g
  // Sources: torch.optim.SGD (momentum beta1, no dampening), arXiv:2302.06675 (Lion). Parameters in bf16 and int8 are
  // changed in f32 and stored as `draws` says (float_values.h, int8_values.h). For an int8 parameter, the step works in
  // the memory of `buffers`, if given. Errors: those of Check; then nothing has changed. InvalidArgument: an int8
  // parameter's new value is not finite; then its moments have changed.
  absl::Status Step(std::int64_t step, double lr, const TensorRef& parameter, const TensorRef& gradient,
                    Moments& moments, const kernels::Stream& stream = {}, const StoreDraws& draws = {},
                    Int8Buffers* buffers = nullptr) const;

  static constexpr std::int64_t kMin8BitElements = 4096;

 private:
  enum class Kind { kAdamW, kAdamW8Bit, kSgd, kLion };

  Kind kind_;
  AdamWConfig config_;
};

}  // namespace nibble::trainer
