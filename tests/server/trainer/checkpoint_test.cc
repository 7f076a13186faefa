#include "server/trainer/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>

#include "server/base/error.h"
#include "server/model/safetensors.h"
#include "server/trainer/optimizer.h"
#include "tests/support/cancel_at.h"
#include "tests/support/random.h"
#include "tests/support/temp_directory.h"

namespace nibble::trainer {
namespace {

bool SameBytes(const TensorRef& a, const TensorRef& b) {
  const std::span<float> scales_a(a.scales, static_cast<std::size_t>(a.num_scales()));
  const std::span<float> scales_b(b.scales, static_cast<std::size_t>(b.num_scales()));
  return a.type == b.type && std::ranges::equal(a.bytes(), b.bytes()) &&
         std::ranges::equal(std::as_bytes(scales_a), std::as_bytes(scales_b));
}

// Fills codes and scales from a counter.
void Fill(const TensorRef& tensor, unsigned first) {
  for (std::byte& byte : tensor.bytes()) byte = static_cast<std::byte>(first++ & 0xff);
  for (std::int64_t i = 0; i < tensor.num_scales(); ++i) tensor.scales[i] = static_cast<float>(first++) * 0.37f;
}

// Two tensors with moments, and the memory that their spans refer to.
struct State {
  explicit State(std::uint64_t seed) {
    for (const std::int64_t size : {6, 20}) {
      const auto i = static_cast<std::uint64_t>(values.size());
      values.push_back(support::NormalVector(seed + 10 * i, size));
      grads.emplace_back(static_cast<std::size_t>(size));
      moments.push_back(
          {support::NormalVector(seed + 10 * i + 1, size), support::NormalVector(seed + 10 * i + 2, size)});
      for (float& v : moments.back().v.ref().f32()) v *= v;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto size = static_cast<std::int64_t>(values[i].size());
      parameters.push_back({i == 0 ? "a.weight" : "b.weight", {2, size / 2}, values[i], grads[i]});
    }
  }
  std::vector<std::vector<float>> values, grads;
  std::vector<Parameter> parameters;
  std::vector<Moments> moments;
};

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    EXPECT_TRUE(base::RealFileSystem().CreateDirectories(directory_.path()).ok());
    progress_ = {.step = 7,
                 .micro_batches = 21,
                 .tokens = 1234,
                 .trained_tokens = 567,
                 .cursor = {.epoch = 2, .taken = 5},
                 .evaluated_step = 6,
                 .best_eval_loss = 1.25,
                 .metrics = {{"loss", 2.5}, {"eval_loss", 1.5}},
                 .differences = {}};
  }
  std::string Save() {
    const auto saved = SaveCheckpoint(base::RealFileSystem(), directory_.path(), progress_, identity_,
                                      state_.parameters, state_.moments, &adapter_);
    EXPECT_TRUE(saved.ok()) << saved.status();
    return saved.ok() ? saved->directory : "";
  }
  absl::StatusOr<TrainingProgress> Load(const std::string& directory, const RunIdentity& identity, State& into) {
    return LoadCheckpoint(base::RealFileSystem(), directory, identity, into.parameters, into.moments);
  }

  const model::AdapterConfig adapter_ = {
      .rank = 3, .alpha = 6.0, .targets = {model::LinearKind::kQ}, .base_model_name_or_path = {}, .base_digest = {}};
  testing::TempDirectory directory_;
  State state_{1};
  TrainingProgress progress_;
  RunIdentity identity_ = {.spec_digest = "spec",
                           .base_digest = "base",
                           .data_digest = "data",
                           .isa = "avx2",
                           .threads = 2,
                           .version = "0.1"};
};

TEST_F(CheckpointTest, LoadRestoresEveryBit) {
  const std::string directory = Save();
  State loaded(2);
  ASSERT_NE(loaded.values, state_.values);
  const auto progress = Load(directory, identity_, loaded);
  ASSERT_TRUE(progress.ok()) << progress.status();
  EXPECT_EQ(loaded.values, state_.values);
  for (std::size_t i = 0; i < loaded.moments.size(); ++i) {
    EXPECT_TRUE(SameBytes(loaded.moments[i].m.ref(), state_.moments[i].m.ref()));
    EXPECT_TRUE(SameBytes(loaded.moments[i].v.ref(), state_.moments[i].v.ref()));
  }
  EXPECT_EQ(progress->step, 7);
  EXPECT_EQ(progress->micro_batches, 21);
  EXPECT_EQ(progress->tokens, 1234);
  EXPECT_EQ(progress->trained_tokens, 567);
  EXPECT_EQ(progress->cursor.epoch, 2);
  EXPECT_EQ(progress->cursor.taken, 5);
  EXPECT_EQ(progress->best_eval_loss, 1.25);
  EXPECT_EQ(progress->evaluated_step, 6) << "step 7 was not evaluated before the save, so its evaluation is still due";
  EXPECT_EQ(progress->metrics, progress_.metrics) << "the next checkpoint shows the last evaluation";
  EXPECT_TRUE(progress->differences.empty());
}

// Values of one type, with moments of another. The tensor's 15 elements are no multiple of the blocks of 4 or 8
// elements that share a scale.
struct TypedState {
  TypedState(ElementType value_type, ElementType moment_type, unsigned first)
      : values(value_type, 15, HasScales(value_type) ? 4 : 0), moments(1) {
    const std::int64_t block = HasScales(moment_type) ? 8 : 0;
    moments[0] = {TensorBuffer(moment_type, 15, block), TensorBuffer(moment_type, 15, block)};
    for (const TensorRef& tensor : {values.ref(), moments[0].m.ref(), moments[0].v.ref()}) Fill(tensor, first += 50);
    parameters.push_back({"a.weight", {3, 5}, values.ref(), {}});
  }
  TensorBuffer values;
  std::vector<Moments> moments;
  std::vector<Parameter> parameters;
};

TEST_F(CheckpointTest, EveryElementTypeKeepsItsBits) {
  for (const ElementType value : {ElementType::kF32, ElementType::kBF16, ElementType::kInt8}) {
    for (const ElementType moment : {ElementType::kF32, ElementType::kMoment8}) {
      SCOPED_TRACE(std::string(Name(value)) + " with moments in " + Name(moment));
      ++progress_.step;
      const TypedState state(value, moment, 1);
      const auto saved = SaveCheckpoint(base::RealFileSystem(), directory_.path(), progress_, identity_,
                                        state.parameters, state.moments, nullptr);
      ASSERT_TRUE(saved.ok()) << saved.status();
      TypedState loaded(value, moment, 7);
      ASSERT_FALSE(SameBytes(loaded.values.ref(), state.values.ref()));
      const auto progress =
          LoadCheckpoint(base::RealFileSystem(), saved->directory, identity_, loaded.parameters, loaded.moments);
      ASSERT_TRUE(progress.ok()) << progress.status();
      EXPECT_TRUE(SameBytes(loaded.values.ref(), state.values.ref()));
      EXPECT_TRUE(SameBytes(loaded.moments[0].m.ref(), state.moments[0].m.ref()));
      EXPECT_TRUE(SameBytes(loaded.moments[0].v.ref(), state.moments[0].v.ref()));
    }
  }
}

TEST_F(CheckpointTest, AnotherElementTypeIsDataLoss) {
  const TypedState saved_state(ElementType::kInt8, ElementType::kMoment8, 1);
  const auto saved = SaveCheckpoint(base::RealFileSystem(), directory_.path(), progress_, identity_,
                                    saved_state.parameters, saved_state.moments, nullptr);
  ASSERT_TRUE(saved.ok()) << saved.status();
  for (const auto& [value, moment] :
       {std::pair(ElementType::kF32, ElementType::kMoment8), std::pair(ElementType::kInt8, ElementType::kF32)}) {
    TypedState loaded(value, moment, 7);
    EXPECT_EQ(LoadCheckpoint(base::RealFileSystem(), saved->directory, identity_, loaded.parameters, loaded.moments)
                  .status()
                  .code(),
              absl::StatusCode::kDataLoss);
  }
}

TEST_F(CheckpointTest, ScalesOfAnotherBlockAreDataLoss) {
  const auto parameters = [](const TensorBuffer& values) {
    return std::vector<Parameter>{{"a.weight", {3, 5}, values.ref(), {}}};
  };
  const auto moments = [] {
    std::vector<Moments> made(1);
    made[0] = {std::vector<float>(15), std::vector<float>(15)};
    return made;
  };
  const TensorBuffer saved_values(ElementType::kInt8, 15, 8);
  const auto saved = SaveCheckpoint(base::RealFileSystem(), directory_.path(), progress_, identity_,
                                    parameters(saved_values), moments(), nullptr);
  ASSERT_TRUE(saved.ok()) << saved.status();
  for (const std::int64_t block : {8, 9}) {  // two scales each
    const TensorBuffer values(ElementType::kInt8, 15, block);
    std::vector<Parameter> into = parameters(values);
    std::vector<Moments> state = moments();
    const auto loaded = LoadCheckpoint(base::RealFileSystem(), saved->directory, identity_, into, state);
    EXPECT_EQ(absl::IsDataLoss(loaded.status()), block == 9) << loaded.status();
  }
}

// Checkpoints from before other element types existed have this form.
TEST_F(CheckpointTest, F32FileHasOnlyValuesAndMoments) {
  const auto file = model::OpenSafetensors(Save() + "/state.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::string> names;
  for (const auto& [name, tensor] : file->tensors) {
    names.push_back(name);
    EXPECT_EQ(tensor.dtype, kernels::DType::kF32) << name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a.weight", "a.weight.exp_avg", "a.weight.exp_avg_sq", "b.weight",
                                             "b.weight.exp_avg", "b.weight.exp_avg_sq"}));
  EXPECT_TRUE(file->metadata.empty());
}

TEST_F(CheckpointTest, CheckpointOfAnotherJobMayHaveOtherSpecAndDataButNotAnotherBase) {
  const std::string directory = Save();
  RunIdentity identity = identity_;
  identity.spec_digest = "other spec";
  identity.data_digest = "other data";
  identity.threads = 3;
  State loaded(2);
  const auto load = [&](CheckpointOf whose) {
    return LoadCheckpoint(base::RealFileSystem(), directory, identity, loaded.parameters, loaded.moments, {}, whose);
  };
  EXPECT_EQ(load(CheckpointOf::kThisJob).status().code(), absl::StatusCode::kFailedPrecondition);
  const auto progress = load(CheckpointOf::kOtherJob);
  ASSERT_TRUE(progress.ok()) << progress.status();
  EXPECT_EQ(progress->step, 7);
  EXPECT_EQ(progress->differences, std::vector<std::string>{"threads was 2, is 3"});
  EXPECT_EQ(loaded.values, state_.values);
  EXPECT_TRUE(SameBytes(loaded.moments[1].v.ref(), state_.moments[1].v.ref()));
  identity.base_digest = "other base";
  const absl::Status refused = load(CheckpointOf::kOtherJob).status();
  EXPECT_EQ(base::Reason(refused), "BASE_MISMATCH");
  EXPECT_EQ(base::ReasonMetadata(refused)["got"], "other base");
  EXPECT_EQ(base::ReasonMetadata(refused)["wanted"], "base");
}

TEST_F(CheckpointTest, WarmStartTakesOnlyTheValues) {
  const std::string directory = Save();
  State loaded(2), untouched(2);
  ASSERT_TRUE(LoadWeights(base::RealFileSystem(), directory, "base", loaded.parameters).ok());
  EXPECT_EQ(loaded.values, state_.values);
  for (std::size_t i = 0; i < loaded.moments.size(); ++i) {
    EXPECT_TRUE(SameBytes(loaded.moments[i].m.ref(), untouched.moments[i].m.ref()));
  }
  EXPECT_EQ(base::Reason(LoadWeights(base::RealFileSystem(), directory, "other", loaded.parameters)), "BASE_MISMATCH");
  loaded.parameters[1].name = "c.weight";
  EXPECT_TRUE(absl::IsDataLoss(LoadWeights(base::RealFileSystem(), directory, "base", loaded.parameters)));
  std::filesystem::resize_file(directory + "/state.json", 3);
  EXPECT_TRUE(absl::IsDataLoss(LoadWeights(base::RealFileSystem(), directory, "base", loaded.parameters)));
}

TEST_F(CheckpointTest, WarmStartTakesCodesWithTheirScales) {
  const TypedState state(ElementType::kInt8, ElementType::kF32, 1);
  const auto saved = SaveCheckpoint(base::RealFileSystem(), directory_.path(), progress_, identity_, state.parameters,
                                    state.moments, nullptr);
  ASSERT_TRUE(saved.ok()) << saved.status();
  TypedState loaded(ElementType::kInt8, ElementType::kF32, 7);
  ASSERT_TRUE(LoadWeights(base::RealFileSystem(), saved->directory, "base", loaded.parameters).ok());
  EXPECT_TRUE(SameBytes(loaded.values.ref(), state.values.ref()));
}

TEST_F(CheckpointTest, SavingAndLoadingCanBeCancelled) {
  support::CancelAt cancel;
  const auto save = [&] {
    return SaveCheckpoint(base::RealFileSystem(), directory_.path(), progress_, identity_, state_.parameters,
                          state_.moments, &adapter_, cancel.callback());
  };
  for (int at = 1; at <= 8; ++at) {  // six tensors, and the hashing of the first files
    cancel.Restart(at);
    EXPECT_EQ(save().status().code(), absl::StatusCode::kCancelled) << at;
  }
  cancel.Restart(0);
  const auto saved = save();
  ASSERT_TRUE(saved.ok()) << saved.status();
  State loaded(2);
  const auto load = [&] {
    return LoadCheckpoint(base::RealFileSystem(), saved->directory, identity_, loaded.parameters, loaded.moments,
                          cancel.callback());
  };
  cancel.Restart(0);
  ASSERT_TRUE(load().ok());
  const int calls = cancel.calls();
  for (int at = 1; at <= calls; ++at) {
    cancel.Restart(at);
    EXPECT_EQ(load().status().code(), absl::StatusCode::kCancelled) << at;
  }
}

TEST_F(CheckpointTest, AnotherMachineOrVersionIsReportedAndNotRefused) {
  const std::string directory = Save();
  RunIdentity elsewhere = identity_;
  elsewhere.threads = 4;
  elsewhere.isa = "plain";
  elsewhere.version = "0.2";
  State loaded(2);
  const auto progress = Load(directory, elsewhere, loaded);
  ASSERT_TRUE(progress.ok()) << progress.status();
  ASSERT_EQ(progress->differences.size(), 3u);
  EXPECT_EQ(progress->differences[1], "threads was 2, is 4");
  EXPECT_EQ(loaded.values, state_.values);
}

TEST_F(CheckpointTest, CheckpointHasMetricsAndAServableAdapterConfig) {
  const std::string directory = Save();
  const auto listed = store::ListCheckpoints(base::RealFileSystem(), directory_.path(), 1);
  ASSERT_TRUE(listed.ok() && listed->size() == 1);
  EXPECT_EQ(listed->front().metrics.at("loss"), 2.5);
  EXPECT_GT(listed->front().created, absl::UnixEpoch());
  const auto text = base::RealFileSystem().Read(directory + "/adapter_config.json", 1 << 20);
  ASSERT_TRUE(text.ok());
  const auto adapter = model::ParsePeftConfig(*base::ParseJson(*text));
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ(adapter->rank, 3);
}

// AdamW continues from a checkpoint as if it had never stopped.
TEST_F(CheckpointTest, StepsAfterALoadEqualThoseOfAnUninterruptedRun) {
  const std::string directory = Save();
  State resumed(3);
  ASSERT_TRUE(Load(directory, identity_, resumed).ok());
  for (int step = 8; step < 12; ++step) {
    for (State* state : {&state_, &resumed}) {
      for (std::size_t i = 0; i < state->values.size(); ++i) {
        std::vector<float> gradient =
            support::NormalVector(static_cast<std::uint64_t>(step), static_cast<std::int64_t>(state->values[i].size()));
        EXPECT_TRUE(AdamWStep({}, step, 1e-2, state->parameters[i].value, gradient, state->moments[i]).ok());
      }
    }
  }
  EXPECT_EQ(resumed.values, state_.values);
}

TEST_F(CheckpointTest, EveryOptimizerContinuesFromItsMoments) {
  constexpr std::int64_t kCount = 5000;  // enough for 8-bit moments
  for (const char* name : {"adamw", "adamw_8bit", "sgd", "lion"}) {
    jobs::OptimConfig config;
    config.optimizer = name;
    const Optimizer optimizer(config);
    struct Run {
      std::vector<float> values = support::NormalVector(1, kCount), gradient;
      std::vector<Parameter> parameters = {{"w", {kCount}, values, {}}};
      std::vector<Moments> moments;
    };
    Run whole, resumed;
    for (Run* run : {&whole, &resumed}) run->moments.push_back(optimizer.MakeMoments(kCount));
    const auto step = [&](Run& run, int number) {
      run.gradient = support::NormalVector(static_cast<std::uint64_t>(number), kCount);
      EXPECT_TRUE(optimizer.Step(number, 1e-3, run.values, run.gradient, run.moments[0]).ok());
    };
    for (int number = 1; number <= 3; ++number) step(whole, number);
    ++progress_.step;
    const auto saved = SaveCheckpoint(base::RealFileSystem(), directory_.path(), progress_, identity_, whole.parameters,
                                      whole.moments, nullptr);
    ASSERT_TRUE(saved.ok()) << saved.status();
    ASSERT_TRUE(
        LoadCheckpoint(base::RealFileSystem(), saved->directory, identity_, resumed.parameters, resumed.moments).ok());
    for (Run* run : {&whole, &resumed}) step(*run, 4);
    EXPECT_EQ(whole.values, resumed.values) << name;
  }
}

TEST_F(CheckpointTest, RefusalNamesTheDigestThatDiffers) {
  const std::string directory = Save();
  const std::string other_digest = "other";
  const std::pair<const char*, std::function<void(RunIdentity&)>> changes[] = {
      {"spec_digest", [&](RunIdentity& i) { i.spec_digest = other_digest; }},
      {"base_digest", [&](RunIdentity& i) { i.base_digest = other_digest; }},
      {"data_digest", [&](RunIdentity& i) { i.data_digest = other_digest; }}};
  for (const auto& [name, change] : changes) {
    RunIdentity other = identity_;
    change(other);
    State loaded(2);
    const auto progress = Load(directory, other, loaded);
    EXPECT_EQ(progress.status().code(), absl::StatusCode::kFailedPrecondition) << name;
    EXPECT_NE(std::string(progress.status().message()).find(name), std::string::npos) << progress.status();
  }
}

TEST_F(CheckpointTest, CheckpointWithoutAnAdapterHasNoAdapterConfig) {
  EXPECT_TRUE(base::RealFileSystem().Exists(Save() + "/" + model::kAdapterConfigFile));
  ++progress_.step;
  const auto saved = SaveCheckpoint(base::RealFileSystem(), directory_.path(), progress_, identity_, state_.parameters,
                                    state_.moments, nullptr);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_FALSE(base::RealFileSystem().Exists(saved->directory + "/" + model::kAdapterConfigFile));
  State loaded(2);
  EXPECT_TRUE(Load(saved->directory, identity_, loaded).ok());
}

TEST_F(CheckpointTest, FlippedBitIsDataLoss) {
  const std::string directory = Save();
  std::fstream file(directory + "/state.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-3, std::ios::end);
  const int byte = file.peek();
  file.seekp(-3, std::ios::end);
  file.put(static_cast<char>(byte ^ 1));
  file.close();
  State loaded(2);
  EXPECT_EQ(Load(directory, identity_, loaded).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointTest, TensorOfAnotherSizeOrNameIsDataLoss) {
  const std::string directory = Save();
  State renamed(2);
  renamed.parameters[1].name = "c.weight";
  EXPECT_EQ(Load(directory, identity_, renamed).status().code(), absl::StatusCode::kDataLoss);
  State shorter(2);
  shorter.parameters[1].value = shorter.parameters[1].value.f32().first(10);
  const auto refused = Load(directory, identity_, shorter);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(refused.status().message()).find("b.weight"), std::string::npos) << refused.status();
}

}  // namespace
}  // namespace nibble::trainer
