#include "server/model/saved_modules.h"

#include <gmock/gmock.h>

#include "server/base/json.h"

namespace nibble::model {
namespace {

using base::Json;
using ::testing::HasSubstr;

ModelConfig Untied() {
  ModelConfig model;
  model.hidden_size = 8;
  model.num_layers = 2;
  model.num_heads = model.num_kv_heads = 2;
  model.head_dim = 6;
  model.ffn_size = 10;
  model.vocab_size = 32;
  model.tied_embeddings = false;
  return model;
}

AdapterConfig Saving(std::vector<std::string> modules) {
  AdapterConfig adapter;
  adapter.rank = 4;
  adapter.alpha = 16;
  adapter.targets = {LinearKind::kQ};
  adapter.modules_to_save = std::move(modules);
  return adapter;
}

std::vector<std::string> Saved(const ModelConfig& model, std::vector<std::string> modules) {
  std::vector<std::string> names;
  for (const TensorSpec& tensor : SavedTensors(model, Saving(std::move(modules)))) names.push_back(tensor.name);
  return names;
}

// The names are those that PEFT 0.21.2 wraps for the same modules_to_save (utils/other.py, _set_trainable: endswith).
TEST(SavedModulesTest, EntriesMatchEndsOfPathsAsInPeft) {
  const std::string in0 = "model.layers.0.input_layernorm.weight", in1 = "model.layers.1.input_layernorm.weight",
                    post0 = "model.layers.0.post_attention_layernorm.weight",
                    post1 = "model.layers.1.post_attention_layernorm.weight";
  using Names = std::vector<std::string>;
  EXPECT_EQ(Saved(Untied(), {}), Names());
  EXPECT_EQ(Saved(Untied(), {"norm"}), (Names{in0, post0, in1, post1, kFinalNormName}));
  EXPECT_EQ(Saved(Untied(), {"model.norm"}), Names{kFinalNormName});
  EXPECT_EQ(Saved(Untied(), {"input_layernorm", "0.post_attention_layernorm"}), (Names{in0, post0, in1}));
  EXPECT_EQ(Saved(Untied(), {"lm_head", "embed_tokens"}), (Names{kEmbeddingName, kHeadName}));
  ModelConfig tied = Untied();
  tied.tied_embeddings = true;
  EXPECT_EQ(Saved(tied, {"embed_tokens"}), Names{kEmbeddingName});
  EXPECT_TRUE(SavesTiedEmbedding(tied, Saving({"embed_tokens"})));
  EXPECT_FALSE(SavesTiedEmbedding(tied, Saving({"norm"})));
  EXPECT_FALSE(SavesTiedEmbedding(Untied(), Saving({"embed_tokens"})));
  ModelConfig with_head_norms = Untied();
  with_head_norms.qk_norm = true;
  EXPECT_EQ(Saved(with_head_norms, {"q_norm"}).size(), 2u);
  EXPECT_EQ(Saved(with_head_norms, {"norm"}).size(), 9u);
}

TEST(SavedModulesTest, CopiesComeBeforeTheLinears) {
  const auto tensors = AdapterTensors(Untied(), Saving({"lm_head", "model.norm"}));
  ASSERT_EQ(tensors.size(), 2u + 4u);
  EXPECT_EQ(tensors[0].name, "base_model.model.model.norm.weight");
  EXPECT_EQ(tensors[0].shape, std::vector<std::int64_t>{8});
  EXPECT_EQ(tensors[1].name, "base_model.model.lm_head.weight");
  EXPECT_EQ(tensors[1].shape, (std::vector<std::int64_t>{32, 8}));
  EXPECT_EQ(tensors[1].dtype, kernels::DType::kF32);
  EXPECT_EQ(tensors[2].name, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
}

TEST(SavedModulesTest, ProblemsNameTheEntryAndTheFix) {
  ModelConfig tied = Untied();
  tied.tied_embeddings = true;
  const auto problem = [](const ModelConfig& model, const char* entry, bool int8_head = false) {
    return SavedModulesProblem(model, Saving({entry}), int8_head);
  };
  for (const char* good : {"norm", "model.norm", "lm_head", "embed_tokens", "layers.1.input_layernorm"}) {
    EXPECT_EQ(problem(Untied(), good), "") << good;
  }
  EXPECT_EQ(problem(tied, "embed_tokens"), "");
  EXPECT_THAT(problem(Untied(), "classifier"), HasSubstr("has \"classifier\", which matches no module, wanted an end"));
  EXPECT_THAT(problem(Untied(), "input_norm"), HasSubstr("matches no module"));
  EXPECT_THAT(problem(Untied(), "q_norm"), HasSubstr("matches no module")) << "the model has no norms of heads";
  EXPECT_THAT(problem(Untied(), "q_proj"), HasSubstr("matches \"model.layers.0.self_attn.q_proj\", wanted only"));
  EXPECT_THAT(problem(Untied(), "mlp"), HasSubstr("matches \"model.layers.0.mlp\""));
  EXPECT_THAT(problem(Untied(), "model"), HasSubstr("matches \"model\""));
  EXPECT_THAT(problem(tied, "lm_head"), HasSubstr("the head of this model is its embedding, wanted embed_tokens"));
  EXPECT_THAT(problem(Untied(), "lm_head", /*int8_head=*/true),
              HasSubstr("an int8 head, wanted a base with a float head"));
  EXPECT_THAT(problem(tied, "embed_tokens", /*int8_head=*/true), HasSubstr("an int8 head"));
  EXPECT_EQ(problem(Untied(), "embed_tokens", /*int8_head=*/true), "") << "a separate embedding stays float";
  EXPECT_EQ(problem(tied, "norm", /*int8_head=*/true), "");
}

TEST(SavedModulesTest, ConfigIsReadAndWrittenAsPeftDoes) {
  EXPECT_TRUE(ToPeftConfig(Saving({}))["modules_to_save"].is_null());
  EXPECT_FALSE(ToPeftConfig(Saving({})).contains("ensure_weight_tying"));
  AdapterConfig adapter = Saving({"embed_tokens", "model.norm"});
  adapter.ensure_weight_tying = true;
  const Json json = ToPeftConfig(adapter);
  EXPECT_EQ(json["modules_to_save"], Json({"embed_tokens", "model.norm"}));
  EXPECT_EQ(json["ensure_weight_tying"], true);
  const auto again = ParsePeftConfig(json);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->modules_to_save, adapter.modules_to_save);
  EXPECT_TRUE(again->ensure_weight_tying);
  for (const Json& bad : {Json("lm_head"), Json({1}), Json({""}), Json(std::vector<std::string>(65, "norm"))}) {
    Json changed = json;
    changed["modules_to_save"] = bad;
    const absl::Status status = ParsePeftConfig(changed).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"modules_to_save\" is not a list of at most 64"));
  }
}

}  // namespace
}  // namespace nibble::model
