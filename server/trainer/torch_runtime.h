// Sets up torch for this process, without torch's headers.
#pragma once
#include <cstdint>
#include <memory>

#include "kernels/launch_counter.h"
#include "kernels/ops/matmul/matmul_library.h"
#include "kernels/thread_pool.h"

namespace nibble::trainer {

// Sets the number of threads and deterministic algorithms, and calls CountOperators. Call once, before any other use of
// torch.
void InitTorch(int threads, kernels::LaunchCounter* launches);
// From now on, every operator of torch counts as "torch:<op>". `launches` must live as long as the process.
void CountOperators(kernels::LaunchCounter* launches);

// Torch's own threads as the kernels' pool, because two sets of threads would compete for the cores.
std::unique_ptr<kernels::ThreadPool> MakeTorchThreadPool();

// The BEST_EFFORT product: torch::mm, or MatmulBf16 for bf16 matrices with an f32 result on machines where that is
// fast. Thread-safe.
std::unique_ptr<kernels::DenseLibrary> MakeTorchLibrary();

}  // namespace nibble::trainer
