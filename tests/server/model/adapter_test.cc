#include "server/model/adapter.h"

#include <gmock/gmock.h>

#include "server/base/strings.h"

namespace nibble::model {
namespace {

using base::Json;
using ::testing::HasSubstr;

AdapterConfig Sample() {
  AdapterConfig config;
  config.rank = 4;
  config.alpha = 16;
  config.targets = {LinearKind::kQ, LinearKind::kDown};
  return config;
}

TEST(AdapterTest, ConfigRoundTrips) {
  const auto config = ParsePeftConfig(ToPeftConfig(Sample()));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rank, 4);
  EXPECT_EQ(config->targets, Sample().targets);
  EXPECT_EQ(config->scaling(), 4.0);
  AdapterConfig rslora = Sample();
  rslora.rslora = true;
  EXPECT_EQ(ParsePeftConfig(ToPeftConfig(rslora))->scaling(), 8.0);
}

TEST(AdapterTest, NamesAndShapesAreThoseOfPeft) {
  ModelConfig model;
  model.hidden_size = 8;
  model.num_layers = 2;
  model.num_heads = model.num_kv_heads = 2;
  model.head_dim = 6;
  model.ffn_size = 10;
  const auto tensors = AdapterTensors(model, Sample());
  ASSERT_EQ(tensors.size(), 8u);
  EXPECT_EQ(tensors[0].name, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
  EXPECT_EQ(tensors[0].shape, (std::vector<std::int64_t>{4, 8}));
  EXPECT_EQ(tensors[1].name, "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight");
  EXPECT_EQ(tensors[1].shape, (std::vector<std::int64_t>{12, 4}));
  EXPECT_EQ(tensors[6].name, "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight");
}

TEST(AdapterTest, WhatIsNotPlainLoraIsRefusedByName) {
  const std::pair<const char*, Json> unsupported[] = {
      {"peft_type", "IA3"},           {"use_dora", true},        {"bias", "all"},
      {"modules_to_save", {"lm_head"}}, {"rank_pattern", {{"q_proj", 8}}}, {"fan_in_fan_out", true},
      {"target_modules", {"q_proj", "lm_head"}}};
  for (const auto& [key, value] : unsupported) {
    Json json = ToPeftConfig(Sample());
    json[key] = value;
    const auto config = ParsePeftConfig(json);
    EXPECT_TRUE(absl::IsUnimplemented(config.status())) << key << ": " << config.status();
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(key));
  }
  const std::pair<const char*, Json> bad[] = {
      {"r", 0}, {"r", -1}, {"r", 5000}, {"r", 2.5}, {"lora_alpha", 0}, {"lora_alpha", "x"}, {"target_modules", Json::array()},
      {"target_modules", "all-linear"}};
  for (const auto& [key, value] : bad) {
    Json json = ToPeftConfig(Sample());
    json[key] = value;
    EXPECT_TRUE(absl::IsInvalidArgument(ParsePeftConfig(json).status())) << key;
  }
}

}  // namespace
}  // namespace nibble::model
