// A Stream says where and how an op runs. Every op takes a Stream as its last argument and borrows it for the call.
#pragma once
#include <cstdint>
#include <functional>

#include "kernels/isa.h"
#include "kernels/launch_counter.h"
#include "kernels/thread_pool.h"

namespace nibble::kernels {

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

class CudaContext;
class DenseLibrary;

// Borrows everything it points to. On the CPU an op has finished when it returns; on CUDA it is stream-ordered.
struct Stream {
  DeviceKind device = DeviceKind::kCpu;
  Isa isa = Isa::kPlain;              // the highest path that may be taken
  ThreadPool* pool = nullptr;         // null: everything on the calling thread
  LaunchCounter* launches = nullptr;  // null: not counted
  DenseLibrary* library = nullptr;    // for matmul_library on the CPU, which fails if this is null
  CudaContext* cuda = nullptr;        // the CUDA stream with its plans and scratch (kernels/cuda/cuda_context.h)

  // Runs body over [0, n) on the pool, or on the calling thread without a pool.
  void ParallelFor(std::int64_t n, std::int64_t grain,
                   const std::function<void(std::int64_t, std::int64_t)>& body) const;
};

}  // namespace nibble::kernels
