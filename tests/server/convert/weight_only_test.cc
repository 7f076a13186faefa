// Int8 models whose linears multiply bf16 rows.
#include <gmock/gmock.h>

#include <string>

#include "server/base/error.h"
#include "server/convert/convert.h"
#include "tests/server/convert/convert_fixture.h"

namespace nibble::convert {
namespace {

using kernels::DType;
using model::Format;
using testing::HasSubstr;

class WeightOnlyTest : public ConvertTest {};

TEST_F(WeightOnlyTest, ModelHasTheCodesOfTheInt8Model) {
  const auto source = Import("hf_tied_bf16", DType::kBF16, "source");
  ASSERT_TRUE(Convert(*source, "int8", {}).ok());
  ASSERT_TRUE(Convert(*source, "weight-only", {.weight_only = true}).ok());
  const auto made = Open("weight-only");
  EXPECT_TRUE(made->info().weight_only);
  EXPECT_EQ(made->info().act_outliers, 0);
  EXPECT_EQ(made->info().determinism(), model::Determinism::kBitwise);
  EXPECT_EQ(made->info().weights_digest, Open("int8")->info().weights_digest);
  const absl::Status status = Convert(*source, "again", {.act_outliers = 1, .weight_only = true}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(base::ReasonMetadata(status)["field"], "act_outliers");
}

// An int8 model that is not weight-only keeps version 1 of nibble.json, which earlier versions of the program read.
// Those programs refuse version 2, instead of serving a weight-only model with int8 activations.
TEST(WeightOnlyInfoTest, OnlyWeightOnlyModelsHaveVersionTwo) {
  model::ArtifactInfo info;
  info.format = Format::kInt8;
  EXPECT_EQ(model::ToJson(info)["version"], 1);
  EXPECT_FALSE(model::ToJson(info).contains("activations"));
  EXPECT_FALSE(model::ParseArtifactInfo(model::ToJson(info))->weight_only);
  info.weight_only = true;
  EXPECT_EQ(model::ToJson(info)["version"], 2);
  EXPECT_EQ(model::ToJson(info)["activations"], "bf16");
  EXPECT_TRUE(model::ParseArtifactInfo(model::ToJson(info))->weight_only);
  EXPECT_THAT(ErrorOfEdited(info, [](auto& json) { json["activations"] = "f32"; }), HasSubstr("\"activations\""));
  EXPECT_THAT(ErrorOfEdited(info, [](auto& json) { json.erase("activations"); }), HasSubstr("\"activations\""));
  EXPECT_THAT(ErrorOfEdited(info, [](auto& json) { json["version"] = 1; }), HasSubstr("version 1"));
  EXPECT_THAT(ErrorOfEdited(info, [](auto& json) { json["version"] = 3; }), HasSubstr("version 3"));
  EXPECT_THAT(ErrorOfEdited(info, [](auto& json) { json["version"] = 4; }), HasSubstr("version 4"));
  info.act_outliers = 8;
  EXPECT_THAT(ErrorOfEdited(info, [](auto&) {}), HasSubstr("\"act_outliers\" is 8"));
  info.act_outliers = 0;
  info.format = Format::kNf4;
  EXPECT_THAT(ErrorOfEdited(info, [](auto&) {}), HasSubstr("in a model in nf4"));
}

}  // namespace
}  // namespace nibble::convert
