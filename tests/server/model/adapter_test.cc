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

constexpr char kQPath[] = "model.layers.1.self_attn.q_proj";

TEST(AdapterTest, ConfigRoundTrips) {
  const auto config = ParsePeftConfig(ToPeftConfig(Sample()));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rank, 4);
  EXPECT_EQ(config->targets, Sample().targets);
  EXPECT_EQ(config->On(kQPath)->scaling, 4.0);
  AdapterConfig rslora = Sample();
  rslora.rslora = true;
  EXPECT_EQ(ParsePeftConfig(ToPeftConfig(rslora))->On(kQPath)->scaling, 8.0);
}

TEST(AdapterTest, NamesAndShapesMatchPeft) {
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

TEST(AdapterTest, NamesUnsupportedOptionsAndRejectsBadValues) {
  const std::pair<const char*, Json> unsupported[] = {{"peft_type", "IA3"},
                                                      {"bias", "all"},
                                                      {"rank_pattern", {{"(?=q)q_proj", 8}}},
                                                      {"target_modules", "(?i)Q_PROJ"},
                                                      {"fan_in_fan_out", true},
                                                      {"target_modules", {"q_proj", "lm_head"}},
                                                      {"alpha_pattern", {{"q_proj[", 8}}},
                                                      {"lora_bias", true},
                                                      {"task_type", "SEQ_CLS"},
                                                      {"init_lora_weights", "pissa_niter_4"},
                                                      {"alora_invocation_tokens", {1, 2}},
                                                      {"layer_replication", {{0, 2}, {1, 2}}},
                                                      {"exclude_modules", {"q_proj"}},
                                                      {"some_option_of_next_year", true}};
  for (const auto& [key, value] : unsupported) {
    Json json = ToPeftConfig(Sample());
    json[key] = value;
    const auto config = ParsePeftConfig(json);
    EXPECT_TRUE(absl::IsUnimplemented(config.status())) << key << ": " << config.status();
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(key));
  }
  const std::pair<const char*, Json> bad[] = {{"r", 0},
                                              {"r", -1},
                                              {"r", 5000},
                                              {"r", 2.5},
                                              {"lora_alpha", 0},
                                              {"lora_alpha", "x"},
                                              {"rank_pattern", {{"q_proj", 0}}},
                                              {"rank_pattern", {{"q_proj", 4097}}},
                                              {"rank_pattern", {"q_proj"}},
                                              {"alpha_pattern", {{"q_proj", -1.0}}},
                                              {"target_modules", Json::array()},
                                              {"target_modules", "all-linear"}};
  for (const auto& [key, value] : bad) {
    Json json = ToPeftConfig(Sample());
    json[key] = value;
    EXPECT_TRUE(absl::IsInvalidArgument(ParsePeftConfig(json).status())) << key;
  }
}

TEST(AdapterTest, FirstPatternThatMatchesGivesRankAndAlpha) {
  Json json = ToPeftConfig(Sample());
  json["target_modules"] = R"(.*\.layers\.[01]\.(self_attn\.[qk]_proj|mlp\.up_proj))";
  json["rank_pattern"] = {{"layers.1.self_attn.q_proj", 2}, {"q_proj", 8}};
  json["alpha_pattern"] = {{"^model.layers.0.*", 32}, {"up_proj", 0.5}};
  const auto config = ParsePeftConfig(json);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto on = [&](const char* path) { return config->On(path).value_or(LinearAdapter{}); };
  EXPECT_EQ(on("model.layers.1.self_attn.q_proj").rank, 2);
  EXPECT_EQ(on("model.layers.1.self_attn.q_proj").scaling, 8.0);
  EXPECT_EQ(on("model.layers.0.self_attn.q_proj").rank, 8);
  EXPECT_EQ(on("model.layers.0.self_attn.q_proj").scaling, 4.0);
  EXPECT_EQ(on("model.layers.1.self_attn.k_proj").rank, 4);
  EXPECT_EQ(on("model.layers.1.mlp.up_proj").scaling, 0.125);
  for (const char* other : {"model.layers.2.self_attn.q_proj", "model.layers.1.self_attn.v_proj", "lm_head"}) {
    EXPECT_FALSE(config->On(other).has_value()) << other;
  }
  EXPECT_EQ(base::Dump(ToPeftConfig(*config)), base::Dump(json)) << "patterns keep their order";
  ModelConfig model;
  model.num_layers = 2;
  const auto tensors = AdapterTensors(model, *config);
  ASSERT_EQ(tensors.size(), 12u);
  EXPECT_EQ(tensors[1].shape[1], 8);
  EXPECT_EQ(tensors[6].name, "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight");
  EXPECT_EQ(tensors[6].shape[0], 2);
}

TEST(AdapterTest, DoraHasAMagnitudeForEachOutput) {
  AdapterConfig config = Sample();
  config.dora = true;
  const auto again = ParsePeftConfig(ToPeftConfig(config));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->dora);
  ModelConfig model;
  model.num_layers = 1;
  const auto tensors = AdapterTensors(model, *again);
  ASSERT_EQ(tensors.size(), 6u);
  EXPECT_EQ(tensors[2].name, "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector");
  EXPECT_EQ(tensors[2].shape, std::vector<std::int64_t>{OutFeatures(model, LinearKind::kQ)});
}

// Has all keys that a LoraConfig of PEFT 0.21.2 saves.
TEST(AdapterTest, ReadsConfigSavedByPeft) {
  const auto json = base::ParseJson(R"({
    "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
    "base_model_name_or_path": "some/base", "bias": "none", "corda_config": null, "ensure_weight_tying": false,
    "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true,
    "init_lora_weights": true, "kasa_config": null, "layer_replication": null, "layers_pattern": null,
    "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 16, "lora_bias": false, "lora_dropout": 0.05,
    "lora_ga_config": null, "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null,
    "monteclora_config": null, "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 4,
    "rank_pattern": {}, "revision": null, "target_modules": ["v_proj", "q_proj"], "target_parameters": null,
    "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_bdlora": null, "use_dora": false,
    "use_qalora": false, "use_rslora": true, "velora_config": null})");
  ASSERT_TRUE(json.ok()) << json.status();
  const auto config = ParsePeftConfig(*json);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rank, 4);
  EXPECT_EQ(config->On(kQPath)->scaling, 8.0);
  EXPECT_EQ(config->targets, (std::vector<LinearKind>{LinearKind::kQ, LinearKind::kV}));
  EXPECT_EQ(config->base_digest, "");
}

// Exports of earlier builds have the digest in adapter_config.json.
TEST(AdapterTest, BaseDigestIsReadButNotWrittenAndMustBeSha256) {
  AdapterConfig config = Sample();
  config.base_digest = std::string(64, 'a');
  Json json = ToPeftConfig(config);
  EXPECT_FALSE(json.contains("nibble_base_digest"));
  json["nibble_base_digest"] = config.base_digest;
  EXPECT_EQ(ParsePeftConfig(json)->base_digest, config.base_digest);
  for (const std::string& bad : {std::string(63, 'a'), std::string(64, 'g'), std::string(64, 'A')}) {
    json["nibble_base_digest"] = bad;
    EXPECT_TRUE(absl::IsInvalidArgument(ParsePeftConfig(json).status())) << bad;
  }
}

}  // namespace
}  // namespace nibble::model
