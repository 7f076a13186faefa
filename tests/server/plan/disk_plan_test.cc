// Compares the plan's sizes with the files that the code writes.
#include "server/plan/disk_plan.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "server/model/stored_tensors.h"
#include "tests/server/model/small_models.h"

namespace nibble::plan {
namespace {

TEST(DiskPlanTest, PlannedBytesEqualThoseOfTheFiles) {
  model::SmallModels models;
  for (const std::string& path : {models.bf16(), models.nf4(), models.int8(), models.ternary()}) {
    SCOPED_TRACE(path);
    const auto artifact = model::Artifact::Open(path);
    ASSERT_TRUE(artifact.ok()) << artifact.status();
    std::int64_t bytes = 0;
    for (const auto& [name, view] : (*artifact)->tensors()) bytes += static_cast<std::int64_t>(view.bytes.size());
    EXPECT_EQ(*model::WeightFileBytes((*artifact)->config(), (*artifact)->info(), /*float_bytes=*/2), bytes);
  }
}

jobs::JobSpec DiskSpec(const char* method) {
  jobs::JobSpec spec;
  spec.method = method;
  return jobs::Resolve(spec, "job-1", "text", "cpu");
}

model::ModelConfig Llama3Of8B() {
  model::ModelConfig config;
  config.architecture = "llama";
  config.hidden_size = 4096;
  config.num_layers = 32;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.ffn_size = 14'336;
  config.vocab_size = 128'256;
  config.max_positions = 8192;
  config.tied_embeddings = false;
  return config;
}

TEST(DiskPlanTest, QLoraOfEightBillionParametersWritesTensOfGigabytes) {
  const model::ModelConfig config = Llama3Of8B();
  const jobs::JobSpec spec = DiskSpec(jobs::kMethodQLora);
  const std::int64_t of_bf16 = PlanDisk(spec, config, /*base_bytes=*/2, /*companion_bytes=*/0, /*max_steps=*/100);
  EXPECT_GT(of_bf16, std::int64_t{14'000'000'000});
  EXPECT_LT(of_bf16, std::int64_t{18'000'000'000});
  EXPECT_LT(PlanDisk(spec, config, /*base_bytes=*/0, 0, 100), of_bf16) << "an nf4 base is not converted";
}

TEST(DiskPlanTest, KeptCheckpointsAreCounted) {
  const model::ModelConfig config = Llama3Of8B();
  jobs::JobSpec spec = DiskSpec(jobs::kMethodBitNetQat);
  spec.run.save_every = 10;
  spec.run.keep_last = 2;
  const std::int64_t three = PlanDisk(spec, config, 2, 0, /*max_steps=*/100);
  // A parameter has 12 bytes: its f32 master and two moments.
  EXPECT_GT(three, std::int64_t{3} * 12 * 8'000'000'000) << "two kept and the one being written";
  EXPECT_LT(PlanDisk(spec, config, 2, 0, /*max_steps=*/5), three / 2)
      << "there is only one checkpoint, after the last step";
  spec.run.save_every = 0;
  EXPECT_LT(PlanDisk(spec, config, 2, 0, 100), three / 2);
}

// A checkpoint keeps trained values in their own type.
TEST(DiskPlanTest, CheckpointsOfSmallerValuesAreSmaller) {
  const model::ModelConfig config = Llama3Of8B();
  // Elements and outputs of the linears of a layer: q and o, k and v, gate and up, down.
  constexpr std::int64_t kLinears = std::int64_t{32} * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 14'336);
  constexpr std::int64_t kRows = 32 * (2 * 4096 + 2 * 1024 + 2 * 14'336 + 4096);
  constexpr std::int64_t kAll = kLinears + std::int64_t{2} * 128'256 * 4096 + (2 * 32 + 1) * 4096;
  // Both serve int8; only int8_mixed also writes the weights in f32.
  jobs::JobSpec codes = DiskSpec(jobs::kMethodInt8Qt), floats = DiskSpec(jobs::kMethodInt8Mixed);
  codes.run.save_every = floats.run.save_every = 0;  // one checkpoint
  codes.optim.optimizer = floats.optim.optimizer = "adamw";
  // kAll * 4 is the model in f32. In the checkpoint, int8_qt has a code instead of each f32 element of a linear, and a
  // scale per output.
  EXPECT_EQ(PlanDisk(floats, config, 2, 0, 100) - PlanDisk(codes, config, 2, 0, 100) - kAll * 4,
            kLinears * 3 - kRows * 4);
  // Masters in bf16: half the bytes in the checkpoint and in the model that is converted.
  for (const char* method : {jobs::kMethodFull, jobs::kMethodInt8Mixed, jobs::kMethodBitNetQat}) {
    jobs::JobSpec whole = DiskSpec(method);
    whole.run.save_every = 0;
    jobs::JobSpec half = whole;
    half.full.param_dtype = half.int8_mixed.master_dtype = half.bitnet_qat.master_dtype = "bf16";
    EXPECT_GE(PlanDisk(whole, config, 2, 0, 100) - PlanDisk(half, config, 2, 0, 100), kAll * 4) << method;
  }
}

}  // namespace
}  // namespace nibble::plan
