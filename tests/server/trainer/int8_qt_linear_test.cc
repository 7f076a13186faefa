// Compares a linear of int8 quantized training that reads float rows with torchao's.
#include "server/trainer/int8_qt_linear.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/isas.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;

// ||got - want|| / ||want||
double RelativeError(const Tensor& got, const Tensor& want) {
  const Tensor exact = want.to(torch::kFloat64);
  return ((got.to(torch::kFloat64) - exact).norm() / exact.norm()).item<double>();
}

TEST(Int8QtLinearTest, FloatRowsGiveTorchaosOutputAndGradients) {
  const support::Golden golden("tests/golden/kernels/int8_weight.txt");
  const struct {
    const char* name;
    std::int64_t rows, n, k;
  } cases[] = {{"odd", 7, 13, 77}, {"one", 1, 37, 200}, {"rows", 31, 19, 64}};
  for (const auto& [name, rows, n, k] : cases) {
    // The first argument only selects the type that the golden file stores.
    const auto tensor = [&, prefix = std::string(name) + "."]<typename T>(T, const char* key,
                                                                          std::vector<std::int64_t> shape) {
      return torch::tensor(golden.Get<T>(prefix + key), torch::CppTypeToScalarType<T>::value).view(shape);
    };
    for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
      SCOPED_TRACE(std::string(name) + " " + torch::toString(type));
      TrainingContext context;
      context.stream.isa = kernels::DetectIsa();
      context.scratch = torch::empty({n * k}, type);
      Int8QtWeight weight;
      weight.codes = tensor(std::int8_t{}, "w", {n, k});
      weight.scale = tensor(float{}, "scale", {n});
      weight.bias = tensor(float{}, "bias", {n}).requires_grad_();
      weight.grad = torch::ones({n, k}, torch::kFloat32);
      Int8Panels panels = {torch::empty({kernels::PackedInt8Bytes(n, k)}, torch::kInt8),
                           torch::empty({kernels::RoundUp(n, kernels::kInt8TileRows)}, torch::kInt32)};
      const Tensor x = tensor(float{}, "x", {rows, k}).to(torch::kBFloat16).requires_grad_();
      const Tensor grad_y = tensor(float{}, "grad_y", {rows, n});
      const Tensor y = ApplyInt8QtLinear({x, nullptr}, weight, panels, context);
      y.backward(grad_y);
      EXPECT_LT(RelativeError(y.detach(), tensor(double{}, "y", {rows, n})), 1e-6);
      // The gradient of bf16 rows is bf16: each element is rounded once, by 2^-8 at most, which is less than 2^-9 in
      // the norm of all elements. The operands of the bf16 products are rounded too.
      const double rounding = type == torch::kFloat32 ? 1e-6 : 0x1p-8;
      EXPECT_EQ(x.grad().scalar_type(), torch::kBFloat16);
      EXPECT_LT(RelativeError(x.grad(), tensor(double{}, "grad_x", {rows, k})), 0x1p-9 + rounding);
      EXPECT_LT(RelativeError(weight.grad - 1, tensor(double{}, "grad_w", {n, k})), rounding) << "added to ones";
      EXPECT_LT(RelativeError(weight.bias.grad(), grad_y.sum(0)), 1e-6);
    }
  }
}

}  // namespace
}  // namespace nibble::trainer
