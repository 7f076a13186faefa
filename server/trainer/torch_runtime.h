// Torch set up for this process, told without torch's headers.
#pragma once
#include <cstdint>
#include <memory>

#include "kernels/launch_counter.h"
#include "kernels/ops/matmul_library.h"
#include "kernels/thread_pool.h"

namespace nibble::trainer {

// Fixes threads and deterministic algorithms; from here on every operator of torch counts as "torch:<op>". Call once, before
// any other use of torch. `launches` must live as long as the process.
void InitTorch(int threads, kernels::LaunchCounter* launches);

// Torch's own threads as the kernels' pool: two sets of threads would fight for the cores.
std::unique_ptr<kernels::ThreadPool> MakeTorchThreadPool();

// torch::mm as the BEST_EFFORT product. Thread-safe.
std::unique_ptr<kernels::DenseLibrary> MakeTorchLibrary();

}  // namespace nibble::trainer
