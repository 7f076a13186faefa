#include "server/trainer/held_gradient.h"

#include <algorithm>

#include "kernels/ops/elementwise/add.h"
#include "server/trainer/autograd.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

constexpr std::int64_t kSliceElements = std::int64_t{1} << 21;  // of a bf16 product: 4 MB

}  // namespace

torch::Tensor HeldGradient(const torch::Tensor& parameter) {
  const torch::Tensor held = parameter.grad();
  return held.defined() && held.scalar_type() == torch::kFloat32 ? held : torch::Tensor();
}

GradientSum::GradientSum(const torch::Tensor& parameter)
    : held_(HeldGradient(parameter).defined()),
      sum_(held_ ? parameter.grad() : torch::zeros(parameter.sizes(), torch::kFloat32)) {}

void AddProduct(const torch::Tensor& sum, const torch::Tensor& a, const torch::Tensor& b,
                const kernels::Stream& stream) {
  const torch::NoGradGuard no_gradients;
  if (a.scalar_type() == torch::kFloat32) {
    sum.addmm_(a.t(), b);
    return;
  }
  const std::int64_t rows = sum.size(0);
  const std::int64_t slice = std::max(kRowQuantum, kSliceElements / std::max<std::int64_t>(1, sum.size(1)));
  for (std::int64_t begin = 0; begin < rows; begin += slice) {
    const std::int64_t count = std::min(slice, rows - begin);
    const torch::Tensor product = torch::mm(a.narrow(1, begin, count).t(), b);
    ThrowIfError(kernels::Add({.x = ViewOf(sum.narrow(0, begin, count)), .y = ViewOf(product)}, stream));
  }
}

torch::Tensor AddOrReturnProduct(const torch::Tensor& parameter, const torch::Tensor& a, const torch::Tensor& b,
                                 const kernels::Stream& stream) {
  const torch::Tensor held = HeldGradient(parameter);
  if (!held.defined()) return torch::mm(a.t(), b).to(torch::kFloat32);
  AddProduct(held, a, b, stream);
  return {};
}

}  // namespace nibble::trainer
