#include "server/trainer/torch_runtime.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/str_replace.h"
#include "kernels/ops/matmul/matmul_bf16.h"
#include "server/base/mutex.h"
#include "server/base/strings.h"
#include "server/model/working_rows.h"
#include "server/trainer/serving_weights.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

// Names of torch's operators as constants that are never freed, as LaunchCounter requires.
class OperatorNames {
 public:
  // Returns nullptr if `name` is not an operator. torch also announces each backward step of autograd, by the name of
  // its C++ class: the kernels and operators that run inside the step are counted, not the step.
  const char* Intern(const char* name) {
    base::MutexLock lock(mutex_);
    auto it = names_.find(name);
    if (it == names_.end()) it = names_.emplace(name, Label(name)).first;
    return it->second == nullptr ? nullptr : it->second->c_str();
  }

 private:
  // "torch:mm" of "aten::mm", "torch:mkldnn_linear" of "mkldnn::linear".
  static std::unique_ptr<std::string> Label(std::string_view name) {
    if (name.starts_with("autograd::engine::")) return nullptr;
    if (name.starts_with("aten::")) name.remove_prefix(6);
    return std::make_unique<std::string>("torch:" + absl::StrReplaceAll(base::ToAbsl(name), {{"::", "_"}}));
  }

  base::Mutex mutex_;
  std::map<std::string, std::unique_ptr<std::string>, std::less<>> names_ ABSL_GUARDED_BY(mutex_);
};

kernels::LaunchCounter* g_launches = nullptr;  // global, because RecordFunction takes a plain function

std::unique_ptr<at::ObserverContext> CountOperator(const at::RecordFunction& function) {
  static OperatorNames names;
  if (const char* name = names.Intern(function.name()); name != nullptr) g_launches->Add(name);
  return nullptr;
}

class TorchThreadPool : public kernels::ThreadPool {
 public:
  TorchThreadPool() : ThreadPool(1) {}  // starts no threads of its own
  int num_threads() const override { return at::get_num_threads(); }
  void ParallelFor(std::int64_t n, std::int64_t grain,
                   const std::function<void(std::int64_t, std::int64_t)>& body) override {
    if (n <= 0) return;
    grain = std::max<std::int64_t>(grain, 1);
    const std::int64_t units = (n + grain - 1) / grain;
    at::parallel_for(0, units, 1,
                     [&](std::int64_t begin, std::int64_t end) { body(begin * grain, std::min(n, end * grain)); });
  }
};

class TorchLibrary : public kernels::DenseLibrary {
 public:
  const char* kernel_name() const override { return "torch:library_matmul"; }
  absl::Status Matmul(const kernels::ConstMatrix& x, const kernels::ConstMatrix& w, const kernels::Matrix& y,
                      bool accumulate, const kernels::Stream& stream) override {
    // torch multiplies only equal types, and its bf16 product writes bf16: our own kernel makes f32 results of bf16
    // rows on machines where it is fast.
    const bool is_bf16 = x.dtype == kernels::DType::kBF16 && w.dtype == kernels::DType::kBF16;
    if (is_bf16 && y.dtype == kernels::DType::kF32 && !accumulate && kernels::HasFastMatmulBf16(stream)) {
      return kernels::MatmulBf16({.x = x, .w = w, .y = y}, stream);
    }
    try {
      const torch::InferenceMode inference;
      torch::Tensor a = TensorOf(x);
      const torch::Tensor b = TensorOf(w);
      const torch::Tensor out = TensorOf(y);
      const bool wide = a.scalar_type() != b.scalar_type() || y.dtype == kernels::DType::kF32;
      if (wide) a = a.to(torch::kFloat32);
      // A head in f32 is twice its size in bf16, so it is widened one slice at a time.
      const std::int64_t slice = wide && b.scalar_type() != torch::kFloat32 ? model::kWidenedRows : w.rows;
      for (std::int64_t begin = 0; begin < w.rows; begin += slice) {
        const std::int64_t count = std::min(slice, w.rows - begin);
        const torch::Tensor product = torch::mm(a, b.narrow(0, begin, count).to(a.scalar_type()).t());
        const torch::Tensor part = out.narrow(1, begin, count);
        if (accumulate) {
          part.add_(product);
        } else {
          part.copy_(product);
        }
      }
    } catch (const std::exception& error) {
      return absl::InternalError(std::string("torch: ") + error.what());
    }
    return absl::OkStatus();
  }
};

}  // namespace

void InitTorch(int threads, kernels::LaunchCounter* launches) {
  at::set_num_threads(threads);
  at::set_num_interop_threads(1);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // Turns off the NaN that deterministic algorithms write into new tensors: all of ours are written before they are
  // read.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  CountOperators(launches);
}

void CountOperators(kernels::LaunchCounter* launches) {
  g_launches = launches;
  at::addGlobalCallback(at::RecordFunctionCallback(CountOperator).scopes({at::RecordScope::FUNCTION}));
}

std::unique_ptr<kernels::ThreadPool> MakeTorchThreadPool() { return std::make_unique<TorchThreadPool>(); }
std::unique_ptr<kernels::DenseLibrary> MakeTorchLibrary() { return std::make_unique<TorchLibrary>(); }

kernels::Matrix ViewOf(const torch::Tensor& tensor) {
  const std::int64_t cols = tensor.size(-1);
  return kernels::MakeMatrix(tensor.data_ptr(),
                             tensor.scalar_type() == torch::kBFloat16 ? kernels::DType::kBF16 : kernels::DType::kF32,
                             cols == 0 ? 0 : tensor.numel() / cols, cols);
}

torch::ScalarType ToTorch(kernels::DType dtype) {
  return dtype == kernels::DType::kBF16 ? torch::kBFloat16 : torch::kFloat32;
}

kernels::PackedDenseWeight PackDense(const torch::Tensor& w, torch::Tensor& panels, const kernels::Stream& stream) {
  const std::int64_t rows = w.size(0), cols = w.size(1);
  const kernels::DType dtype = ViewOf(w).dtype;
  if (!panels.defined()) panels = torch::empty({kernels::PackedDenseElements(rows, cols)}, w.scalar_type());
  // A thread packs whole panels, which begin where their rows do.
  constexpr std::int64_t kPanelRows = kernels::kDensePanelRows, kGrain = 4;  // at least 4 panels per thread
  stream.ParallelFor((rows + kPanelRows - 1) / kPanelRows, kGrain, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * kPanelRows, count = std::min(end * kPanelRows, rows) - first;
    const auto offset = static_cast<std::size_t>(first * cols) * w.element_size();
    kernels::PackDenseWeight(static_cast<const char*>(w.data_ptr()) + offset, dtype, count, cols,
                             static_cast<char*>(panels.data_ptr()) + offset);
  });
  return {panels.data_ptr(), dtype, rows, cols};
}

TensorRef RefOf(const torch::Tensor& tensor) {
  TensorRef ref;
  ref.type = tensor.scalar_type() == torch::kBFloat16 ? ElementType::kBF16 : ElementType::kF32;
  ref.data = tensor.data_ptr();
  ref.count = tensor.numel();
  return ref;
}

absl::StatusOr<const model::DecoderWeights*> MakeServingWeights(TrainingModel& model) {
  return Guarded([&]() -> absl::StatusOr<const model::DecoderWeights*> { return &model.ServingWeights(); });
}

void HoldGradients(std::vector<torch::Tensor>& tensors, std::vector<Parameter>& parameters) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    torch::Tensor& tensor = tensors[i];
    tensor.mutable_grad() = torch::zeros_like(tensor);
    parameters[i].value = RefOf(tensor);
    parameters[i].grad = RefOf(tensor.grad());
  }
}

void ReleaseGradients(std::vector<torch::Tensor>& tensors, std::vector<Parameter>& parameters) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].mutable_grad().reset();
    parameters[i].grad = {};
  }
}

torch::Tensor TensorOf(const kernels::ConstMatrix& matrix) {
  return torch::from_blob(const_cast<void*>(matrix.data), {matrix.rows, matrix.cols}, {matrix.stride, 1},
                          torch::TensorOptions().dtype(ToTorch(matrix.dtype)));
}

}  // namespace nibble::trainer
