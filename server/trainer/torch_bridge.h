// What connects torch with the kernels: tensors as matrices, torch's threads as the kernels' pool, torch's product as the
// BEST_EFFORT library, torch's operators in the launch counts.
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
#include "kernels/ops/matmul_library.h"
#include "kernels/thread_pool.h"
#include "server/base/cancelled.h"
#include "server/base/error.h"
#include "server/trainer/training_model.h"

namespace nibble::trainer {

// A contiguous tensor of f32 or bf16 seen as [all but the last size, last size]; it must outlive the view.
kernels::Matrix ViewOf(const torch::Tensor& tensor);
// The same memory as a tensor.
torch::Tensor TensorOf(const kernels::ConstMatrix& matrix);
torch::ScalarType ToTorch(kernels::DType dtype);
// w [N, K], f32 or bf16, as matmul_dense reads it. `panels` must outlive the result; made where it is undefined.
kernels::PackedDenseWeight PackDense(const torch::Tensor& w, torch::Tensor& panels);
// Gives each of `tensors`, f32, a gradient of zeros, and the parameter of the same number spans of both. They stay good until
// ReleaseGradients: a backward pass adds to the gradient in its place.
void HoldGradients(std::vector<torch::Tensor>& tensors, std::vector<Parameter>& parameters);
void ReleaseGradients(std::vector<torch::Tensor>& tensors, std::vector<Parameter>& parameters);

// Errors of kernels cross torch as exceptions; the models turn them into a Status again.
inline void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

// A wish to stop crosses torch as an exception too: autograd hands it on unchanged.
struct StoppedError : std::runtime_error {
  StoppedError() : std::runtime_error("told to stop") {}
};
inline void ThrowIfCancelled(const base::Cancelled& cancelled) {
  if (cancelled && cancelled()) throw StoppedError();
}

// body(), which returns a Status or a StatusOr; what is thrown in it as a status. Errors: ResourceExhausted (OUT_OF_DEVICE_MEMORY),
// Cancelled (StoppedError), Internal.
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
