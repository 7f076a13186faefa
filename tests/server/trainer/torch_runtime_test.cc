#include "server/trainer/torch_runtime.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "server/trainer/torch_bridge.h"
#include "tests/support/torch_memory.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;

// Evaluation multiplies few rows by a head of tens of thousands of outputs. The f32 form of the whole head must never
// exist.
TEST(TorchLibraryTest, Bf16WeightIsWidenedInSlices) {
  constexpr std::int64_t kOutputs = 20000, kInputs = 64, kRows = 5;
  torch::manual_seed(1);
  const Tensor w = torch::randn({kOutputs, kInputs}).to(torch::kBFloat16);
  const auto library = MakeTorchLibrary();
  for (const torch::ScalarType type : {torch::kBFloat16, torch::kFloat32}) {
    for (const bool accumulate : {false, true}) {
      const Tensor x = torch::randn({kRows, kInputs}).to(type), before = torch::randn({kRows, kOutputs});
      const Tensor y = before.clone();
      std::int64_t peak = 0;
      {
        const support::TorchMemory memory;
        const absl::Status status = library->Matmul(ViewOf(x), ViewOf(w), ViewOf(y), accumulate, {});
        ASSERT_TRUE(status.ok()) << status;
        peak = memory.peak_bytes();
      }
      // A slice has 4096 outputs (model::kWidenedRows), with their weights and products in f32. The bound has room for
      // 5000 outputs, and for x in f32.
      EXPECT_LE(peak, 5000 * (kInputs + kRows) * 4 + 4096) << "the whole weight takes " << kOutputs * kInputs * 4;
      // The product with the whole weight, which torch sums in f32 but possibly in another order.
      const Tensor product = torch::mm(x.to(torch::kFloat32), w.to(torch::kFloat32).t());
      const Tensor want = accumulate ? before + product : product;
      EXPECT_LE((y - want).abs().max().item<double>(), kInputs * 0x1p-24 * product.abs().max().item<double>());
    }
  }
}

struct Doubled : torch::autograd::Function<Doubled> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x * 2; }
  static std::vector<Tensor> backward(torch::autograd::AutogradContext*, std::vector<Tensor> grads) {
    return {grads[0] * 2};
  }
};

// The names are labels of nibble_kernel_launches_total.
TEST(CountOperatorsTest, NamesAreThoseOfOperatorsNotOfClassesOfAutograd) {
  static kernels::LaunchCounter launches;  // torch's operators are counted until the process ends
  CountOperators(&launches);
  const Tensor x = torch::randn({3, 4}).requires_grad_();
  torch::mm(Doubled::apply(x), torch::randn({4, 5})).sum().backward();
  std::map<std::string, std::uint64_t> counts;
  for (const auto& [name, count] : launches.Snapshot()) {
    counts[name] = count;
    ASSERT_EQ(name.rfind("torch:", 0), 0u) << name;
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_", 6), std::string::npos) << name;
  }
  EXPECT_EQ(counts["torch:mm"], 2u) << "forward, and the gradient of x";
}

// at::parallel_for, a template, uses several threads only if torch_runtime.cc, which calls it, is compiled with OpenMP.
TEST(TorchThreadPoolTest, SplitsTheRangeAmongTorchsThreads) {
  at::set_num_threads(3);
  const auto pool = MakeTorchThreadPool();
  EXPECT_EQ(pool->num_threads(), 3);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::vector<int> visits(100);
  pool->ParallelFor(100, 7, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_EQ(begin % 7, 0);
    for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), 3u);
  EXPECT_EQ(visits, std::vector<int>(100, 1));
}

}  // namespace
}  // namespace nibble::trainer
