// Inputs of linears that the graph does not keep: the backward pass computes them again.
#pragma once
#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <functional>
#include <utility>

namespace nibble::trainer {

// Rows that linears read again in their backward pass. The first of these linears computes the rows from tensors that
// the graph keeps anyway. The rows are freed with this object, when the last of these linears has ended. One thread.
class RecomputedRows : public torch::CustomClassHolder {
 public:
  using Compute = std::function<torch::Tensor()>;
  explicit RecomputedRows(Compute compute) : compute_(std::move(compute)) {}
  // The first call computes the rows and frees the tensors that they are computed from.
  const torch::Tensor& Values() {
    if (!values_.defined()) values_ = std::exchange(compute_, nullptr)();
    return values_;
  }

 private:
  Compute compute_;
  torch::Tensor values_;
};

// Input [T, K] of linears that read floats.
struct FloatInput {
  // A tensor is an input without recomputed rows.
  FloatInput(torch::Tensor values, c10::intrusive_ptr<RecomputedRows> recomputed_rows = {})
      : x(std::move(values)), recomputed(std::move(recomputed_rows)) {}
  FloatInput() = default;

  torch::Tensor x;
  c10::intrusive_ptr<RecomputedRows> recomputed;  // null: a linear that needs x in its backward pass keeps x
};

}  // namespace nibble::trainer
