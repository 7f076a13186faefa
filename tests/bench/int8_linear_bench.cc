// Speed of a linear in training, forward and backward, without the optimizer: int8 (all three products, and the forward
// product alone) beside our float linear and torch's own in bf16 and f32, in one process. The int8 cases include the
// quantization of the weight, as if each step had one micro-batch. The largest shape is a linear of a 1.17 B model.
#include <torch/types.h>

#include <cstdio>
#include <memory>
#include <string>

#include "server/trainer/float_linear.h"
#include "server/trainer/int8_linear.h"
#include "server/trainer/torch_runtime.h"
#include "tests/bench/bench.h"

namespace nibble::bench {
namespace {

using torch::Tensor;

struct LinearProblem {
  LinearProblem(std::int64_t t, std::int64_t k, std::int64_t n, const kernels::Stream& stream)
      : x(torch::randn({t, k})), weight(torch::randn({n, k})), grad_y(torch::randn({t, n})) {
    context.stream = stream;
  }
  Tensor x, weight, grad_y;
  trainer::TrainingContext context;
};

struct Gradients {
  Tensor y, x, weight;
};

// y(x, weight) and its gradients.
template <typename Linear>
Gradients Pass(LinearProblem& problem, torch::ScalarType type, Linear linear) {
  const bool bf16 = type == torch::kBFloat16;
  problem.context.scratch = torch::empty({0}, trainer::BackwardType(bf16, problem.context.stream));
  const Tensor x = problem.x.detach().to(type).requires_grad_(true);
  const Tensor weight = problem.weight.detach().requires_grad_(true);
  const Tensor y = linear(x, weight);
  y.backward(problem.grad_y.to(y.scalar_type()));
  return {y.detach(), x.grad(), weight.grad()};
}

Gradients Int8Pass(LinearProblem& problem, const trainer::Int8LinearOptions& options) {
  return Pass(problem, torch::kBFloat16, [&](const Tensor& x, const Tensor& master) {
    auto weight = std::make_unique<trainer::Int8Weight>();
    weight->master = master;
    weight->Quantize(options, /*bf16=*/true, problem.context.stream);
    const Tensor y = trainer::ApplyInt8Linear({x, nullptr}, *weight, options, /*draw=*/0, problem.context);
    static std::unique_ptr<trainer::Int8Weight> kept;  // the graph keeps its address until the backward pass
    kept = std::move(weight);
    return y;
  });
}

Gradients FloatPass(LinearProblem& problem, torch::ScalarType type) {
  return Pass(problem, type, [&](const Tensor& x, const Tensor& master) {
    static trainer::FloatLinear linear;  // the graph keeps its address until the backward pass
    linear = {master, {}, {}};
    if (type == torch::kBFloat16) linear.Round();
    return trainer::ApplyFloatLinear(x, linear, problem.context);
  });
}

Gradients TorchPass(LinearProblem& problem, torch::ScalarType type) {
  return Pass(problem, type, [&](const Tensor& x, const Tensor& weight) { return torch::linear(x, weight.to(type)); });
}

// Whether the noise is at least 20 dB below the signal.
bool Agrees(const Tensor& got, const Tensor& want) {
  const double noise = (got.to(torch::kFloat32) - want).square().sum().item<double>();
  return noise * 100 < want.square().sum().item<double>();
}

template <typename Run>
void Add(Bench& bench, const std::string& name, std::int64_t t, std::int64_t n, std::int64_t k,
         std::function<LinearProblem&()> get, Roof roof, Run run) {
  bench.Add({CaseName(name, t, n, k), roof, 6.0 * static_cast<double>(t * n * k),  // three products
             [get, run] {
               LinearProblem& problem = get();
               const Gradients got = run(problem);
               return Agrees(got.y, problem.x.mm(problem.weight.t())) &&
                      Agrees(got.x, problem.grad_y.mm(problem.weight)) &&
                      Agrees(got.weight, problem.grad_y.t().mm(problem.x));
             },
             [get, run](std::int64_t) { run(get()); }});
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  using nibble::bench::LinearProblem;
  using nibble::bench::Roof;
  nibble::bench::Bench bench(argc, argv);
  static nibble::kernels::LaunchCounter launches;  // torch counts into it until the process ends
  nibble::trainer::InitTorch(bench.threads(), &launches);
  const auto library = nibble::trainer::MakeTorchLibrary();
  const auto pool = nibble::trainer::MakeTorchThreadPool();
  nibble::kernels::Stream stream = bench.stream();
  stream.library = library.get();
  stream.pool = pool.get();
  for (const auto& [t, k, n] :
       {std::tuple{1024, 576, 1536}, std::tuple{1024, 1536, 576}, std::tuple{1024, 2048, 8192}}) {
    const std::function<LinearProblem&()> get =
        nibble::bench::Lazily<LinearProblem>(std::int64_t{t}, std::int64_t{k}, std::int64_t{n}, stream);
    nibble::trainer::Int8LinearOptions all, forward;
    forward.grad_input = forward.grad_weight = false;
    Add(bench, "int8 all", t, n, k, get, Roof::kInt8, [=](LinearProblem& p) { return Int8Pass(p, all); });
    Add(bench, "int8 forward", t, n, k, get, Roof::kInt8, [=](LinearProblem& p) { return Int8Pass(p, forward); });
    for (const torch::ScalarType type : {torch::kBFloat16, torch::kFloat32}) {
      const std::string name = type == torch::kBFloat16 ? " bf16" : " f32";
      Add(bench, "float" + name, t, n, k, get, Roof::kF32, [=](LinearProblem& p) { return FloatPass(p, type); });
      Add(bench, "torch" + name, t, n, k, get, Roof::kF32, [=](LinearProblem& p) { return TorchPass(p, type); });
    }
  }
  return bench.Run();
}
