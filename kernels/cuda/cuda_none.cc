// Stubs for a build without CUDA: there are no devices, and every call that could fail returns Unimplemented.
#include "kernels/cuda/cuda_buffer.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_device.h"

namespace nibble::kernels {
namespace {

constexpr LaunchResult kNone = {LaunchCode::kUnimplemented, "built without CUDA"};

}  // namespace

CudaDevices FindCudaDevices() { return {0, kNone.text}; }
LaunchResult DescribeCudaDevice(int, CudaDeviceInfo*) { return kNone; }

struct CudaContext::Impl {};
CudaContext::CudaContext(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CudaContext::~CudaContext() = default;
LaunchResult CudaContext::Create(int, std::unique_ptr<CudaContext>*) { return kNone; }
LaunchResult CudaContext::Borrow(int, void*, std::unique_ptr<CudaContext>*) { return kNone; }
int CudaContext::device_index() const { return 0; }
void* CudaContext::stream() const { return nullptr; }
LaunchResult CudaContext::Synchronize() { return kNone; }
LaunchResult CudaContext::Scratch(std::int64_t, void**) { return kNone; }
LaunchResult CudaContext::Multiply(const CublasLtProblem&, const void*, const void*, void*) { return kNone; }

CudaBuffer::~CudaBuffer() = default;
CudaBuffer::CudaBuffer(CudaBuffer&&) noexcept {}
CudaBuffer& CudaBuffer::operator=(CudaBuffer&&) noexcept { return *this; }
LaunchResult CudaBuffer::Allocate(CudaContext&, std::int64_t) { return kNone; }
LaunchResult CudaBuffer::FromHost(const void*) { return kNone; }
LaunchResult CudaBuffer::ToHost(void*) const { return kNone; }

}  // namespace nibble::kernels
