#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "server/convert/checkpoint_model.h"
#include "server/convert/convert.h"
#include "server/model/trainer_logprobs.h"
#include "server/trainer/recipe.h"
#include "server/trainer/torch_runtime.h"
#include "tests/server/model/small_models.h"
#include "tests/server/trainer/finite_differences.h"

namespace nibble::trainer {
namespace {

class LoraRecipeTest : public testing::Test {
 protected:
  LoraRecipeTest() {
    stream_.library = library_.get();
    order_.spec.method = jobs::kMethodLora;
    order_.spec.base_model = "source";
    order_.spec.data.max_seq_len = 32;
    order_.spec.lora.r = 4;
    order_.spec.lora.target_modules = {"q_proj", "down_proj"};
    order_.spec = jobs::Resolve(order_.spec, "job-1", "text", "cpu");
    order_.base_cache_directory = models_.Path("bases");
    order_.base_cache_bytes = std::int64_t{1} << 30;
  }

  absl::StatusOr<std::unique_ptr<Recipe>> Make(const std::string& base) {
    order_.base_model_directory = base;
    std::filesystem::create_directories(models_.Path("attempt"));
    return MakeLoraRecipe({.order = order_,
                           .directory = models_.Path("attempt"),
                           .files = base::RealFileSystem(),
                           .stream = stream_,
                           .log = [](const std::string&) { return absl::OkStatus(); },
                           .warn = [](const std::string&, const std::string&) { return absl::OkStatus(); },
                           .cancelled = {}});
  }

  model::SmallModels models_;
  const std::unique_ptr<kernels::DenseLibrary> library_ = MakeTorchLibrary();
  kernels::Stream stream_ = models_.stream();
  jobs::AttemptOrder order_;
};

TEST_F(LoraRecipeTest, ResultIsAnAdapterOnTheUnquantizedBase) {
  for (const std::string& base : {models_.bf16(), models_.f32()}) {
    const auto recipe = Make(base);
    ASSERT_TRUE(recipe.ok()) << recipe.status();
    const auto opened = model::Artifact::Open(base);
    EXPECT_EQ((*recipe)->base_digest(), (*opened)->info().weights_digest);
    EXPECT_FALSE(std::filesystem::exists(models_.Path("bases"))) << "no base is quantized";
    const std::string directory = base + "-trained";
    const auto made = (*recipe)->Write(base::Json::object(), directory);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(made->format, model::Format::kLora);
    EXPECT_EQ(made->base_format, (*opened)->info().format);
    EXPECT_EQ(made->base_digest, (*opened)->info().weights_digest);
    ASSERT_TRUE((*recipe)->WriteLogprobs({{3, 1, 4, 1, 5}}, directory).ok());
    const auto logprobs = model::ReadTrainerLogprobs(base::RealFileSystem(), directory);
    ASSERT_TRUE(logprobs.ok()) << logprobs.status();
    EXPECT_EQ(logprobs->sequences.at(0).logprobs.size(), 4u);
    EXPECT_EQ((*recipe)->served_format(), model::Format::kInt8);
    const auto trained = model::Artifact::Open(directory);
    const auto int8 = convert::ConvertModel(base::RealFileSystem(), **trained, base + "-int8", {}, stream_);
    ASSERT_TRUE(int8.ok()) << int8.status();
    EXPECT_FALSE(int8->info.int8_head);
  }
}

// The model made from a checkpoint equals the model that the trainer writes. The base stays in bf16.
TEST_F(LoraRecipeTest, CheckpointBecomesTheModelThatTheTrainerWrites) {
  const auto recipe = Make(models_.bf16());
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  std::uint64_t seed = 0;
  std::vector<model::TensorPlan> plan;
  for (Parameter& parameter : (*recipe)->model().parameters()) {
    const auto values = support::NormalVector(++seed, static_cast<std::int64_t>(parameter.value.f32().size()), 0.05f);
    std::copy(values.begin(), values.end(), parameter.value.f32().begin());
    plan.push_back({parameter.name, kernels::DType::kF32, parameter.shape});
  }
  const auto written = (*recipe)->Write(base::Json::object(), models_.Path("written"));
  ASSERT_TRUE(written.ok()) << written.status();
  base::FileSystem& files = base::RealFileSystem();
  const std::string checkpoint = models_.Path("checkpoint");
  ASSERT_TRUE(files.CreateDirectories(checkpoint).ok());
  auto tensors =
      model::SafetensorsWriter::Create(files, base::JoinPath(checkpoint, convert::kCheckpointTensorsFile), plan);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  for (const Parameter& parameter : (*recipe)->model().parameters()) {
    const auto bytes = parameter.value.bytes();
    ASSERT_TRUE((*tensors)->Put(parameter.name, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}).ok());
  }
  ASSERT_TRUE((*tensors)->Finish().ok());
  ASSERT_TRUE(base::WriteFileAtomically(files, base::JoinPath(checkpoint, model::kAdapterConfigFile),
                                        base::Dump(model::ToPeftConfig(*(*recipe)->adapter())))
                  .ok());
  const auto base = model::Artifact::Open(models_.bf16());
  const auto made =
      convert::MakeLoraCheckpointModel(files, **base, checkpoint, base::Json::object(), models_.Path("published"));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->weights_digest, written->weights_digest);
  EXPECT_EQ(made->base_format, model::Format::kBF16);
  EXPECT_EQ(made->source, "checkpoint");
}

// The parameters are the whole state of the model: a new attempt that gets them continues with the same losses.
TEST_F(LoraRecipeTest, ResumedModelHasTheSameLossesAndGradients) {
  order_.spec.lora.dropout = 0.3;
  const auto first = Make(models_.bf16()), second = Make(models_.bf16());
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  const data::MicroBatch batch = TwoSegments((*first)->config().vocab_size);
  std::vector<Parameter>& parameters = (*first)->model().parameters();
  // One plain step, so that B is not 0.
  ASSERT_TRUE((*first)->model().ForwardBackward(batch, 1.0, 0).ok());
  for (Parameter& parameter : parameters) {
    for (std::size_t i = 0; i < parameter.value.f32().size(); ++i) {
      parameter.value.f32()[i] -= 0.01f * parameter.grad.f32()[i];
    }
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::copy(parameters[i].value.f32().begin(), parameters[i].value.f32().end(),
              (*second)->model().parameters()[i].value.f32().begin());
  }
  std::vector<double> losses;
  for (const auto& recipe : {&*first, &*second}) {
    TrainingModel& model = (*recipe)->model();
    model.ZeroGrad();
    ASSERT_TRUE(model.Refresh().ok());
    const auto loss = model.ForwardBackward(batch, 1.0, 7);
    ASSERT_TRUE(loss.ok()) << loss.status();
    losses.push_back(*loss);
  }
  EXPECT_EQ(losses[0], losses[1]);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto gradient = parameters[i].grad.f32(), again = (*second)->model().parameters()[i].grad.f32();
    EXPECT_TRUE(std::equal(gradient.begin(), gradient.end(), again.begin())) << parameters[i].name;
  }
}

TEST_F(LoraRecipeTest, Nf4BaseIsRefused) {
  const auto refused = Make(models_.nf4());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("nf4"), absl::string_view::npos) << refused.status();
}

}  // namespace
}  // namespace nibble::trainer
