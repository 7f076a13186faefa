// Connects torch with the kernels: tensors as matrices and as TensorRefs, gradients that are held in place, errors as
// exceptions. torch_runtime.cc implements it, and connects threads, library and launch counts (torch_runtime.h).
#pragma once
#include <torch/types.h>

#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/formats/dense.h"
#include "kernels/matrix.h"
#include "kernels/ops/matmul/matmul_library.h"
#include "kernels/thread_pool.h"
#include "server/base/cancelled.h"
#include "server/base/error.h"
#include "server/trainer/training_model.h"

namespace nibble::trainer {

// A contiguous tensor of f32 or bf16 seen as a matrix: the last dimension is the columns, all others are rows. The
// tensor must outlive the view.
kernels::Matrix ViewOf(const torch::Tensor& tensor);
// The same memory as a tensor.
torch::Tensor TensorOf(const kernels::ConstMatrix& matrix);
torch::ScalarType ToTorch(kernels::DType dtype);
// w [N, K], f32 or bf16, as matmul_dense reads it. `panels` must outlive the result; it is created if undefined. The
// stream's threads share the work.
kernels::PackedDenseWeight PackDense(const torch::Tensor& w, torch::Tensor& panels, const kernels::Stream& stream);
// The memory of a contiguous tensor of f32 or bf16.
TensorRef RefOf(const torch::Tensor& tensor);
// Gives each of `tensors` (f32 or bf16) a gradient of zeros, and the parameter of the same index views of both. The
// views stay valid until ReleaseGradients, because backward passes add to the gradient in place.
void HoldGradients(std::vector<torch::Tensor>& tensors, std::vector<Parameter>& parameters);
void ReleaseGradients(std::vector<torch::Tensor>& tensors, std::vector<Parameter>& parameters);

// Kernel errors pass through torch as exceptions; the models turn them back into a Status.
inline void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

// A stop request also passes through torch as an exception: autograd propagates it unchanged.
struct StoppedError : std::runtime_error {
  StoppedError() : std::runtime_error("stop requested") {}
};
inline void ThrowIfCancelled(const base::Cancelled& cancelled) {
  if (cancelled && cancelled()) throw StoppedError();
}

// Returns body(), which is a Status or a StatusOr, and turns exceptions into a status. Errors: ResourceExhausted
// (OUT_OF_DEVICE_MEMORY), Cancelled (StoppedError), Internal.
template <typename Body>
auto Guarded(Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const c10::OutOfMemoryError& error) {
    return base::WithReason(absl::ResourceExhaustedError(error.what_without_backtrace()), "OUT_OF_DEVICE_MEMORY");
  } catch (const StoppedError& error) {
    return absl::CancelledError(error.what());
  } catch (const c10::Error& error) {
    return absl::InternalError(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace nibble::trainer
