// Models that a job trained: their form, what conversions keep of it, and the same model from a checkpoint.
#include <gtest/gtest.h>

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/convert/checkpoint_model.h"
#include "server/convert/convert.h"
#include "server/model/safetensors_writer.h"
#include "server/model/stored_tensors.h"
#include "tests/server/convert/convert_fixture.h"

namespace nibble::convert {
namespace {

using kernels::DType;
using model::Format;

TEST_F(ConvertTest, OutliersOfTrainingAreThoseOfTheInt8Model) {
  const auto source = Import("hf_tied_bf16", DType::kBF16, "source");
  std::vector<std::vector<float>> values;
  for (const auto& spec : model::RequiredTensors(source->config())) values.push_back(*source->FloatTensor(spec.name));
  std::vector<TrainedTensor> tensors;
  for (const std::vector<float>& value : values) tensors.push_back({std::as_bytes(std::span(value))});
  ASSERT_TRUE(MakeTrainedModel(files_, source->config(), {.trained_outliers = 3}, tensors, source->directory(),
                               base::Json::object(), directory_.Path("trained"))
                  .ok());
  const auto trained = Open("trained");
  EXPECT_EQ(trained->info().trained_outliers, 3);
  ConvertOptions options;
  ASSERT_TRUE(Convert(*trained, "int8", options).ok());
  EXPECT_EQ(Open("int8")->info().act_outliers, 3);
  EXPECT_FALSE(Open("int8")->info().int8_head);
  options.act_outliers = 5;
  ASSERT_TRUE(Convert(*trained, "int8-5", options).ok());
  EXPECT_EQ(Open("int8-5")->info().act_outliers, 5);
  ASSERT_TRUE(Convert(*trained, "bf16", {.to = Format::kBF16}).ok());
  ASSERT_TRUE(Convert(*Open("bf16"), "int8-of-bf16", {}).ok());
  EXPECT_EQ(Open("int8-of-bf16")->info().act_outliers, 3);
  EXPECT_FALSE(Open("int8-of-bf16")->info().int8_head);
}

TEST_F(ConvertTest, TrainedModelMayBeBF16) {
  const auto source = Import("hf_tied_bf16", DType::kBF16, "source");
  std::vector<TrainedTensor> tensors;
  for (const auto& spec : model::RequiredTensors(source->config()))
    tensors.push_back({source->Tensor(spec.name)->bytes});
  const auto made = MakeTrainedModel(files_, source->config(), {.dtype = DType::kBF16}, tensors, source->directory(),
                                     base::Json::object(), directory_.Path("trained"));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->format, Format::kBF16);
  EXPECT_EQ(made->weights_digest, source->info().weights_digest);
}

// A job that trains int8 weights writes the form that is served. A conversion copies it.
TEST_F(ConvertTest, ModelTrainedInInt8IsCopied) {
  const auto source = Import("hf_tied_bf16", DType::kBF16, "source");
  ASSERT_TRUE(Convert(*source, "int8", {.act_outliers = 0, .int8_head = false}).ok());
  const auto converted = Open("int8");
  std::vector<std::vector<float>> floats;  // the scales of linears, the values of other tensors
  std::vector<TrainedTensor> tensors;
  for (const auto& spec : model::RequiredTensors(source->config())) {
    if (spec.role == model::TensorRole::kLinear) {
      floats.push_back(*converted->FloatTensor(spec.name + model::kInt8ScaleSuffix));
      tensors.push_back({converted->Tensor(spec.name)->bytes, floats.back()});
    } else {
      floats.push_back(*source->FloatTensor(spec.name));
      tensors.push_back({std::as_bytes(std::span(floats.back()))});
    }
  }
  const auto made = MakeTrainedModel(files_, source->config(), {.trained_outliers = 4, .dtype = DType::kI8}, tensors,
                                     source->directory(), base::Json::object(), directory_.Path("trained"));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->format, Format::kInt8);
  EXPECT_EQ(made->act_outliers, 4);
  EXPECT_EQ(made->weights_digest, converted->info().weights_digest);
  const auto trained = Open("trained");
  const auto copy = Convert(*trained, "copy", {});
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(copy->info.weights_digest, made->weights_digest);
  EXPECT_EQ(copy->info.base_digest, made->weights_digest);
  EXPECT_EQ(copy->info.act_outliers, 4);
  EXPECT_EQ(copy->info.source, "convert");
  EXPECT_TRUE(copy->layers.empty()) << "nothing is rounded";
  EXPECT_TRUE(absl::IsInvalidArgument(Convert(*trained, "again", {.act_outliers = 8}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Convert(*trained, "again", {.weight_only = true}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Convert(*trained, "again", {.int8_head = true}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Convert(*trained, "again", {.kv_dtype = DType::kF32}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Convert(*trained, "again", {.to = Format::kBF16}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Convert(*Open("copy"), "again", {}).status())) << "no job trained the copy";

  // A checkpoint holds the codes under the same names, and the scales beside them.
  ASSERT_TRUE(files_.CreateDirectories(directory_.Path("step")).ok());
  std::vector<model::TensorPlan> plan;
  std::map<std::string, std::string_view> bytes;
  std::size_t at = 0;
  for (const auto& spec : model::RequiredTensors(source->config())) {
    const bool linear = spec.role == model::TensorRole::kLinear;
    const TrainedTensor& tensor = tensors[at++];
    plan.push_back({spec.name, linear ? DType::kI8 : DType::kF32, spec.shape});
    bytes[spec.name] = {reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size()};
    if (!linear) continue;
    plan.push_back({spec.name + kCheckpointScales, DType::kF32, {spec.shape[0]}});
    bytes[spec.name + kCheckpointScales] = {reinterpret_cast<const char*>(tensor.scales.data()),
                                            tensor.scales.size_bytes()};
  }
  auto writer = model::SafetensorsWriter::Create(files_, directory_.Path("step/state.safetensors"), plan);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const auto& [name, values] : bytes) ASSERT_TRUE((*writer)->Put(name, values).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  const auto published =
      MakeTrainedCheckpointModel(files_, *source, source->config(), {.trained_outliers = 4, .dtype = DType::kI8},
                                 directory_.Path("step"), {}, directory_.Path("published"));
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_EQ(published->weights_digest, made->weights_digest);
}

}  // namespace
}  // namespace nibble::convert
