// Compares every family with transformers. tests/golden/model/make_family_golden.py made the models and the logprobs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/model/family_fixture.h"

namespace nibble::model {
namespace {

using base::Json;
using ::testing::HasSubstr;

class FamilyTest : public FamilyFixture, public ::testing::WithParamInterface<const char*> {
 protected:
  FamilyTest() { Copy("families", GetParam()); }
};

TEST_P(FamilyTest, EveryLogprobMatchesTransformers) {
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  ExpectLogprobsOfTransformers(**model, "families", GetParam());
}

// transformers 4 wrote rope_theta and rope_scaling at the top level, and torch_dtype instead of dtype.
TEST_P(FamilyTest, FolderOfTransformers4GivesTheSameModel) {
  EditConfig([](Json& json) {
    Json rope = json["rope_parameters"];
    json["rope_theta"] = rope["rope_theta"];
    rope.erase("rope_theta");
    json["rope_scaling"] = rope["rope_type"] == "default" ? Json(nullptr) : rope;
    json.erase("rope_parameters");
    json.erase("layer_types");
    json["torch_dtype"] = json["dtype"];
    json.erase("dtype");
    json["transformers_version"] = "4.57.0";
  });
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  ExpectLogprobsOfTransformers(**model, "families", GetParam());
}

TEST_P(FamilyTest, NamesMissingTensor) {
  EditConfig([](Json& json) { json["num_hidden_layers"] = 3; });
  const auto model = Load();
  EXPECT_TRUE(absl::IsInvalidArgument(model.status())) << model.status();
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("model.layers.2."));
}

TEST_P(FamilyTest, SlidingWindowLimitsTheContextAndIsNamed) {
  EditConfig([](Json& json) {
    json["sliding_window"] = 100;
    json["use_sliding_window"] = true;
    json["max_window_layers"] = 1;
    json.erase("layer_types");
  });
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->max_positions(), 100);
  EXPECT_TRUE(Logprobs(**model, std::vector<std::int32_t>(100, 5), 64).ok());
  const auto beyond = Logprobs(**model, std::vector<std::int32_t>(101, 5), 64);
  EXPECT_TRUE(absl::IsInvalidArgument(beyond.status()));
  EXPECT_THAT(std::string(beyond.status().message()), HasSubstr("100 positions (its sliding window)"));
}

INSTANTIATE_TEST_SUITE_P(All, FamilyTest,
                         ::testing::Values("llama", "llama3", "mistral", "qwen2", "qwen3", "phi3", "bitnet"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace nibble::model
