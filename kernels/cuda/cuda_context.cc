#include "kernels/cuda/cuda_context.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/cuda/cuda_result.h"

namespace nibble::kernels {
namespace {

// NVIDIA's advice for Hopper (cuBLAS documentation, cublasSetWorkspace); enough for sm_80 too.
constexpr std::size_t kCublasWorkspaceBytes = std::size_t{32} << 20;
constexpr std::uint32_t kMaxAlignment = 256;  // of cudaMalloc; plans ask for at most this
constexpr std::size_t kMaxPlans = 512;        // prompts come in every length: the plans must be bounded

// The types of one kind of product.
struct TypeSet {
  cudaDataType_t input;
  cudaDataType_t output;
  cublasComputeType_t compute;
  cudaDataType_t scale;
};

TypeSet TypesOf(CublasLtProblem::Types types) {
  using Types = CublasLtProblem::Types;
  switch (types) {
    case Types::kI8ToI32: return {CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I, CUDA_R_32I};
    case Types::kBF16ToBF16: return {CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F};
    case Types::kBF16ToF32: return {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F};
    case Types::kF32ToF32: break;
  }
  return {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F};
}

std::uint32_t Alignment(const void* p) {
  std::uint32_t alignment = kMaxAlignment;
  while (reinterpret_cast<std::uintptr_t>(p) % alignment != 0) alignment /= 2;
  return alignment;
}

// Owns a cuBLASLt object that is destroyed by `Destroy`.
template <typename T, auto Destroy>
struct Handle {
  T value = nullptr;
  Handle() = default;
  Handle(Handle&& other) noexcept : value(std::exchange(other.value, nullptr)) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (value != nullptr) (void)Destroy(value);
  }
};
using Library = Handle<cublasLtHandle_t, cublasLtDestroy>;
using Description = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

struct Plan {
  Description description;
  Layout a, b, d;
  cublasLtMatmulAlgo_t algorithm;
};

}  // namespace

struct CudaContext::Impl {
  // Types, m, n, k, lda, ldb, ldd, and the alignments of a, b and d.
  using Key = std::tuple<CublasLtProblem::Types, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                         std::int64_t, std::uint32_t, std::uint32_t, std::uint32_t>;
  static constexpr std::size_t kAlignmentA = 7, kAlignmentB = 8, kAlignmentD = 9;  // indices in Key

  cublasStatus_t MakePlan(const CublasLtProblem& p, const Key& key, Plan* plan);
  // The message names the problem; it lives until the next error of this context.
  LaunchResult CublasError(const CublasLtProblem& p, const char* what, cublasStatus_t status);

  int device_index = 0;
  cudaStream_t stream = nullptr;
  bool owns_stream = false;
  void* scratch = nullptr;
  std::int64_t scratch_bytes = 0;
  void* workspace = nullptr;
  Library library;
  std::map<Key, Plan> plans;
  std::string error;
};

cublasStatus_t CudaContext::Impl::MakePlan(const CublasLtProblem& p, const Key& key, Plan* plan) {
  const TypeSet types = TypesOf(p.types);
  const auto size = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
  const cublasOperation_t transpose = CUBLAS_OP_T;
  Preference preference;
  cublasStatus_t status = cublasLtMatmulDescCreate(&plan->description.value, types.compute, types.scale);
  const auto then = [&status](auto call) {
    if (status == CUBLAS_STATUS_SUCCESS) status = call();
  };
  then([&] {
    return cublasLtMatmulDescSetAttribute(plan->description.value, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                          sizeof transpose);
  });
  then([&] { return cublasLtMatrixLayoutCreate(&plan->a.value, types.input, size(p.k), size(p.m), p.lda); });
  then([&] { return cublasLtMatrixLayoutCreate(&plan->b.value, types.input, size(p.k), size(p.n), p.ldb); });
  then([&] { return cublasLtMatrixLayoutCreate(&plan->d.value, types.output, size(p.m), size(p.n), p.ldd); });
  then([&] { return cublasLtMatmulPreferenceCreate(&preference.value); });
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    then([&] { return cublasLtMatmulPreferenceSetAttribute(preference.value, attribute, &value, sizeof value); });
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kCublasWorkspaceBytes);
  // Add the parts of a split sum in the compute type: by default they may be added in bf16 when the output is bf16.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::get<kAlignmentA>(key));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::get<kAlignmentB>(key));
  // c, the addend of an accumulating product, is d.
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::get<kAlignmentD>(key));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::get<kAlignmentD>(key));
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  then([&] {
    return cublasLtMatmulAlgoGetHeuristic(library.value, plan->description.value, plan->a.value, plan->b.value,
                                          plan->d.value, plan->d.value, preference.value, 1, &result, &found);
  });
  then([&] { return found == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : result.state; });
  plan->algorithm = result.algo;
  return status;
}

LaunchResult CudaContext::Impl::CublasError(const CublasLtProblem& p, const char* what, cublasStatus_t status) {
  char text[256];
  std::snprintf(text, sizeof text,
                "%s: %s for types %d, m %" PRId64 " n %" PRId64 " k %" PRId64 " lda %" PRId64 " ldb %" PRId64
                " ldd %" PRId64,
                what, cublasLtGetStatusString(status), static_cast<int>(p.types), p.m, p.n, p.k, p.lda, p.ldb, p.ldd);
  error = text;
  const bool memory = status == CUBLAS_STATUS_ALLOC_FAILED;
  return {memory ? LaunchCode::kResourceExhausted : LaunchCode::kInternal, error.c_str()};
}

CudaContext::CudaContext(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

CudaContext::~CudaContext() {
  const DeviceGuard guard(impl_->device_index);
  impl_->plans.clear();
  // Errors here mean that the device is lost, which the last op has reported already.
  if (impl_->scratch != nullptr) (void)cudaFreeAsync(impl_->scratch, impl_->stream);
  if (impl_->workspace != nullptr) (void)cudaFreeAsync(impl_->workspace, impl_->stream);
  if (impl_->owns_stream) (void)cudaStreamDestroy(impl_->stream);
}

LaunchResult CudaContext::Create(int device_index, std::unique_ptr<CudaContext>* out) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) return ToResult(error);
  if (device_index < 0 || device_index >= count) return ToResult(cudaErrorInvalidDevice);
  const DeviceGuard guard(device_index);
  cudaStream_t stream = nullptr;
  const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error != cudaSuccess) return ToResult(error);
  const LaunchResult result = Borrow(device_index, stream, out);
  if (result.code == LaunchCode::kOk) {
    (*out)->impl_->owns_stream = true;
  } else {
    (void)cudaStreamDestroy(stream);
  }
  return result;
}

LaunchResult CudaContext::Borrow(int device_index, void* cuda_stream, std::unique_ptr<CudaContext>* out) {
  const DeviceGuard guard(device_index);
  auto impl = std::make_unique<Impl>();
  impl->device_index = device_index;
  impl->stream = static_cast<cudaStream_t>(cuda_stream);
  if (const cublasStatus_t status = cublasLtCreate(&impl->library.value); status != CUBLAS_STATUS_SUCCESS) {
    return {LaunchCode::kInternal, cublasLtGetStatusString(status)};
  }
  out->reset(new CudaContext(std::move(impl)));
  return {};
}

int CudaContext::device_index() const { return impl_->device_index; }
void* CudaContext::stream() const { return impl_->stream; }

LaunchResult CudaContext::Synchronize() {
  const DeviceGuard guard(impl_->device_index);
  return ToResult(cudaStreamSynchronize(impl_->stream));
}

LaunchResult CudaContext::Scratch(std::int64_t bytes, void** out) {
  const DeviceGuard guard(impl_->device_index);
  if (bytes > impl_->scratch_bytes) {
    if (impl_->scratch != nullptr) (void)cudaFreeAsync(impl_->scratch, impl_->stream);
    impl_->scratch = nullptr;
    impl_->scratch_bytes = 0;
    const cudaError_t error = cudaMallocAsync(&impl_->scratch, static_cast<std::size_t>(bytes), impl_->stream);
    if (error != cudaSuccess) {
      impl_->scratch = nullptr;
      return ToResult(error);
    }
    impl_->scratch_bytes = bytes;
  }
  *out = impl_->scratch;
  return {};
}

LaunchResult CudaContext::Multiply(const CublasLtProblem& p, const void* a, const void* b, void* d) {
  const DeviceGuard guard(impl_->device_index);
  if (impl_->workspace == nullptr) {
    const cudaError_t error = cudaMallocAsync(&impl_->workspace, kCublasWorkspaceBytes, impl_->stream);
    if (error != cudaSuccess) {
      impl_->workspace = nullptr;
      return ToResult(error);
    }
  }
  const Impl::Key key = {p.types, p.m, p.n, p.k, p.lda, p.ldb, p.ldd, Alignment(a), Alignment(b), Alignment(d)};
  auto plan = impl_->plans.find(key);
  if (plan == impl_->plans.end()) {
    if (impl_->plans.size() >= kMaxPlans) impl_->plans.clear();
    Plan made;
    const cublasStatus_t status = impl_->MakePlan(p, key, &made);
    if (status != CUBLAS_STATUS_SUCCESS) return impl_->CublasError(p, "cuBLASLt has no plan", status);
    plan = impl_->plans.emplace(key, std::move(made)).first;
  }
  const float one_f32 = 1.0f, zero_f32 = 0.0f;
  const std::int32_t one_i32 = 1, zero_i32 = 0;
  const bool integer = p.types == CublasLtProblem::Types::kI8ToI32;
  const void* one = integer ? static_cast<const void*>(&one_i32) : &one_f32;
  const void* zero = integer ? static_cast<const void*>(&zero_i32) : &zero_f32;
  const void* beta = p.accumulate ? one : zero;
  const Plan& use = plan->second;
  const cublasStatus_t status = cublasLtMatmul(impl_->library.value, use.description.value, one, a, use.a.value, b,
                                               use.b.value, beta, d, use.d.value, d, use.d.value, &use.algorithm,
                                               impl_->workspace, kCublasWorkspaceBytes, impl_->stream);
  if (status != CUBLAS_STATUS_SUCCESS) return impl_->CublasError(p, "cublasLtMatmul", status);
  return {};
}

}  // namespace nibble::kernels
