// AdamW, element by element (kernels/ops/elementwise/adamw.h) or with plain loops in a fixed order: gives the same bits
// for any number of threads and after any resume. Another machine gives the same bits too, unless the pow of its C
// library, used for the bias corrections, differs.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/stream.h"
#include "server/trainer/tensor_ref.h"

namespace nibble::trainer {

struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
};

// First and second moments of one tensor.
struct Moments {
  TensorBuffer m;
  TensorBuffer v;
};

// Unimplemented unless AdamWStep can train this tensor: values and gradients in f32 or bf16, both moments in f32 or in
// 8 bits with blocks of kMomentBlock (dynamic_map.h). `name` is for the message.
absl::Status CheckAdamW(std::string_view name, const TensorRef& value, const TensorRef& grad, const Moments& moments);

// One step (numbered from 1) of decoupled weight decay: p -= lr * wd * p, then p -= lr / bc1 * m / (sqrt(v) / sqrt(bc2)
// + eps), as torch.optim.AdamW orders it, where bc1 = 1 - beta1^step and bc2 = 1 - beta2^step. Source:
// arXiv:1711.05101. 8-bit moments are widened to f32 for the step; the parameter is changed with the f32 moments, which
// are then rounded again (torchao's order). A second moment other than 0 does not become 0, which torchao and
// bitsandbytes let happen. Elements, or the blocks of 8-bit moments, do not depend on each other, so `stream` splits
// them among its threads. `draws` seeds the stochastic rounding of values in bf16. Errors: those of CheckAdamW;
// then nothing has changed.
absl::Status AdamWStep(const AdamWConfig& config, std::int64_t step, double lr, const TensorRef& parameter,
                       const TensorRef& gradient, Moments& moments, const kernels::Stream& stream = {},
                       const StoreDraws& draws = {});

// Multiplies every value, f32 or bf16, by `factor`; bf16 is rounded to nearest.
void Scale(const TensorRef& values, float factor, const kernels::Stream& stream = {});

// L2 norm over all tensors, f32 or bf16, in f64. Sums each tensor in order, then the tensors' sums in order.
double GlobalNorm(const std::vector<TensorRef>& gradients, const kernels::Stream& stream = {});

}  // namespace nibble::trainer
