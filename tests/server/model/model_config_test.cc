#include "server/model/model_config.h"

#include <gmock/gmock.h>

#include <cmath>

#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/model/tensor_table.h"
#include "tests/server/model/files.h"

namespace nibble::model {
namespace {

using base::Json;
using ::testing::HasSubstr;

Json Parse(const std::string& text) {
  auto json = base::ParseJson(text);
  EXPECT_TRUE(json.ok()) << json.status();
  return *json;
}

// A config.json of Llama as transformers 4 wrote it.
Json Version4() {
  return Parse(
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
    "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "vocab_size": 128256})");
}

std::string Message(const Json& json) { return std::string(base::ToStd(ParseHfConfig(json).status().message())); }

TEST(ModelConfigTest, ReadsTransformers4) {
  const auto config = ParseHfConfig(Version4());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->kv_size(), 512);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_EQ(config->rope.scaling, RopeConfig::Scaling::kLlama3);
  EXPECT_EQ(config->rope.theta, 500000.0);
  EXPECT_EQ(config->rope.factor, 32.0);
  EXPECT_EQ(config->rope.original_max_positions, 8192);
  EXPECT_EQ(config->bos_token_id, 128000);
  EXPECT_EQ(config->eos_token_ids, (std::vector<std::int32_t>{128001, 128008, 128009}));
  EXPECT_EQ(config->pad_token_id, std::nullopt);
}

TEST(ModelConfigTest, ReadsTransformers5AndItsOwnOutput) {
  for (const char* name : {"hf_tied_bf16/config.json", "hf_sharded_f32/config.json"}) {
    const auto config = ParseHfConfig(Parse(ReadBytes(Golden(name))));
    ASSERT_TRUE(config.ok()) << config.status();
    const auto again = ParseHfConfig(ToHfConfig(*config));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(base::Dump(ToHfConfig(*again)), base::Dump(ToHfConfig(*config)));
  }
  const auto config = ParseHfConfig(Parse(ReadBytes(Golden("hf_sharded_f32/config.json"))));
  EXPECT_EQ(config->head_dim, 12);
  EXPECT_TRUE(config->qkv_bias && config->o_bias);
  EXPECT_TRUE(config->mlp_bias);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_EQ(config->rope.scaling, RopeConfig::Scaling::kLlama3);
  EXPECT_EQ(config->rope.original_max_positions, 64);
}

TEST(ModelConfigTest, RejectsUnsupportedFeaturesByName) {
  const std::pair<const char*, Json> cases[] = {
      {"architectures", Json::array({"Gemma2ForCausalLM"})},
      {"model_type", "gemma3_text"},
      {"hidden_act", "gelu"},
      {"quantization_config", {{"quant_method", "gptq"}}},
      {"layer_types", {"full_attention", "linear_attention"}},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}},
      {"rope_parameters", {{"rope_type", "longrope"}}},
  };
  const char* const named[] = {"Gemma2ForCausalLM", "gemma3_text", "gelu",    "gptq",
                               "linear_attention",  "yarn",        "longrope"};
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    Json json = Version4();
    json[cases[i].first] = cases[i].second;
    const auto config = ParseHfConfig(json);
    EXPECT_TRUE(absl::IsUnimplemented(config.status())) << config.status();
    EXPECT_EQ(base::Reason(config.status()), "UNSUPPORTED_MODEL");
    EXPECT_THAT(Message(json), HasSubstr(named[i]));
  }
}

// Only the keys that every family's config.json needs.
Json Bare(const char* architecture, const char* model_type) {
  return {{"architectures", {architecture}}, {"model_type", model_type}, {"hidden_size", 64}, {"num_hidden_layers", 2},
          {"num_attention_heads", 32},       {"intermediate_size", 96},  {"vocab_size", 100}};
}

TEST(ModelConfigTest, AbsentKeysTakeTransformersDefaults) {
  const auto mistral = ParseHfConfig(Bare("MistralForCausalLM", "mistral"));
  ASSERT_TRUE(mistral.ok()) << mistral.status();
  EXPECT_EQ(mistral->num_kv_heads, 8);
  EXPECT_EQ(mistral->sliding_window, 4096);
  EXPECT_EQ(mistral->max_positions, 131072);
  const auto qwen2 = ParseHfConfig(Bare("Qwen2ForCausalLM", "qwen2"));
  ASSERT_TRUE(qwen2.ok()) << qwen2.status();
  EXPECT_TRUE(qwen2->qkv_bias);
  EXPECT_FALSE(qwen2->o_bias);
  EXPECT_EQ(qwen2->sliding_window, 0);  // use_sliding_window is off
  const auto qwen3 = ParseHfConfig(Bare("Qwen3ForCausalLM", "qwen3"));
  ASSERT_TRUE(qwen3.ok()) << qwen3.status();
  EXPECT_EQ(qwen3->head_dim, 128);
  EXPECT_TRUE(qwen3->qk_norm);
  EXPECT_FALSE(qwen3->qkv_bias);
  Json bitnet_json = Bare("BitNetForCausalLM", "bitnet");
  // null means as many KV heads as heads. Without the key, BitNet would have 5.
  bitnet_json["num_key_value_heads"] = nullptr;
  const auto bitnet = ParseHfConfig(bitnet_json);
  ASSERT_TRUE(bitnet.ok()) << bitnet.status();
  EXPECT_EQ(bitnet->num_kv_heads, 32);
  EXPECT_EQ(bitnet->activation, Activation::kRelu2);
  EXPECT_EQ(bitnet->norms, NormPlacement::kBlockAndSub);
  EXPECT_EQ(bitnet->rope.theta, 500000.0);
  EXPECT_EQ(bitnet->rms_norm_eps, 1e-5);
}

TEST(ModelConfigTest, EveryFamilyRoundTripsThroughConfigJson) {
  for (const auto& [architecture, type] : {std::pair{"LlamaForCausalLM", "llama"},
                                           {"MistralForCausalLM", "mistral"},
                                           {"Qwen2ForCausalLM", "qwen2"},
                                           {"Qwen3ForCausalLM", "qwen3"},
                                           {"Phi3ForCausalLM", "phi3"},
                                           {"BitNetForCausalLM", "bitnet"}}) {
    Json json = Bare(architecture, type);
    json["num_key_value_heads"] = 4;
    json["use_sliding_window"] = true;
    json["sliding_window"] = 512;
    json["max_window_layers"] = 1;
    for (const char* norms : {"block", "block_and_sub", "linear", "block_and_linear"}) {
      json["nibble_norms"] = norms;
      json["nibble_linear_norm_eps"] = 1e-3;
      const auto config = ParseHfConfig(json);
      ASSERT_TRUE(config.ok()) << config.status();
      EXPECT_EQ(config->context_limit(), 512) << type;
      const auto again = ParseHfConfig(ToHfConfig(*config));
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(base::Dump(ToHfConfig(*again)), base::Dump(ToHfConfig(*config)));
      EXPECT_EQ(again->norms, config->norms);
      EXPECT_EQ(again->linear_norm_eps, 1e-3);
      EXPECT_EQ(again->context_limit(), 512);
    }
  }
}

TEST(ModelConfigTest, UnusedWindowDoesNotLimitTheContext) {
  Json json = Bare("Qwen2ForCausalLM", "qwen2");
  json["use_sliding_window"] = true;
  json["sliding_window"] = 512;
  json["max_window_layers"] = 2;
  EXPECT_EQ(ParseHfConfig(json)->sliding_window, 0);
  json["max_window_layers"] = 1;
  EXPECT_EQ(ParseHfConfig(json)->sliding_window, 512);
  json["layer_types"] = {"full_attention", "full_attention"};  // transformers 5 writes the layers' types
  EXPECT_EQ(ParseHfConfig(json)->sliding_window, 0);
  json["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(ParseHfConfig(json)->limit_text(512), "512 positions (its sliding window)");
  EXPECT_EQ(ParseHfConfig(json)->limit_text(100), "100 positions");
}

TEST(ModelConfigTest, BadFieldsAreNamed) {
  const std::pair<const char*, Json> cases[] = {
      {"hidden_size", 0},
      {"hidden_size", 1e30},
      {"hidden_size", -64},
      {"hidden_size", "2048"},
      {"hidden_size", 2047},
      {"num_hidden_layers", std::int64_t{1} << 40},
      {"num_attention_heads", nullptr},
      {"num_key_value_heads", 5},
      {"head_dim", 63},
      {"vocab_size", UINT64_MAX},
      {"rms_norm_eps", 0.0},
      {"rms_norm_eps", HUGE_VAL},
      {"tie_word_embeddings", 1},
      {"eos_token_id", {-1}},
      {"eos_token_id", 128256},
      {"bos_token_id", 1e30},
      {"rope_theta", -1.0},
      {"intermediate_size", false},
      {"max_position_embeddings", 0},
      {"architectures", "Llama"},
  };
  for (const auto& [key, value] : cases) {
    Json json = Version4();
    json[key] = value;
    const auto config = ParseHfConfig(json);
    EXPECT_TRUE(absl::IsInvalidArgument(config.status())) << key << ": " << config.status();
    EXPECT_THAT(Message(json), HasSubstr(key));
  }
  Json both = Version4();
  both["rope_parameters"] = {{"rope_type", "default"}};
  EXPECT_THAT(Message(both), HasSubstr("rope_parameters"));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseHfConfig(Json::array()).status()));
}

TEST(ModelConfigTest, RopeFrequenciesMatchTransformers) {
  const Json cases = Parse(ReadBytes(Golden("rope.json")));
  ASSERT_EQ(cases.size(), 5u);
  for (const Json& item : cases) {
    const auto config = ParseHfConfig(item["config"]);
    ASSERT_TRUE(config.ok()) << config.status();
    const std::vector<float> got = RopeInverseFrequencies(*config);
    ASSERT_EQ(got.size(), item["inv_freq"].size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      // transformers computes in f32, with a few roundings.
      const double want = item["inv_freq"][i].get<double>();
      EXPECT_NEAR(got[i], want, 4e-7 * want) << base::Dump(item["config"]["rope_parameters"]) << " " << i;
    }
  }
}

TEST(TensorTableTest, ListsNamesShapesAndBiases) {
  ModelConfig config = *ParseHfConfig(Parse(ReadBytes(Golden("hf_sharded_f32/config.json"))));
  const auto tensors = RequiredTensors(config);
  EXPECT_EQ(tensors.size(), 1u + 2u * (2 + 7 * 2) + 1 + 1);
  EXPECT_EQ(tensors.front().name, kEmbeddingName);
  EXPECT_EQ(tensors.back().name, kHeadName);
  EXPECT_EQ(tensors.back().role, TensorRole::kHead);
  EXPECT_EQ(tensors[2].name, "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(tensors[2].shape, (std::vector<std::int64_t>{48, 32}));
  EXPECT_EQ(tensors[3].name, "model.layers.0.self_attn.q_proj.bias");
  config.tied_embeddings = true;
  config.qkv_bias = config.o_bias = false;
  EXPECT_EQ(RequiredTensors(config).size(), 1u + 2u * (2 + 7 + 3) + 1);
  EXPECT_EQ(ModulePath(3, LinearKind::kUp), "model.layers.3.mlp.up_proj");
}

}  // namespace
}  // namespace nibble::model
