#include "server/model/saved_modules.h"

#include <algorithm>

#include "server/base/strings.h"

namespace nibble::model {

using base::StrCat;

namespace {

constexpr char kHeadModule[] = "lm_head";
constexpr char kEmbeddingModule[] = "model.embed_tokens";

// "model.norm" for "model.norm.weight".
std::string ModuleOf(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

bool CanBeSaved(TensorRole role) {
  return role == TensorRole::kEmbedding || role == TensorRole::kNorm || role == TensorRole::kHead;
}

// The first module that the text matches although it cannot be saved, or "".
std::string WrongMatch(const ModelConfig& model, const std::string& text) {
  std::vector<std::string> paths = OtherModules(model);
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (int k = 0; k < kNumLinearKinds; ++k) paths.push_back(ModulePath(layer, static_cast<LinearKind>(k)));
  }
  for (const TensorSpec& tensor : RequiredTensors(model)) {
    if (CanBeSaved(tensor.role)) std::erase(paths, ModuleOf(tensor.name));
  }
  const auto found =
      std::find_if(paths.begin(), paths.end(), [&](const std::string& path) { return path.ends_with(text); });
  return found == paths.end() ? "" : *found;
}

}  // namespace

std::string SavedName(const std::string& tensor) { return LoraModule(tensor); }

std::vector<TensorSpec> SavedTensors(const ModelConfig& model, const AdapterConfig& adapter) {
  std::vector<TensorSpec> saved;
  if (adapter.modules_to_save.empty()) return saved;
  for (TensorSpec& tensor : RequiredTensors(model)) {
    if (CanBeSaved(tensor.role) && adapter.Saves(ModuleOf(tensor.name))) saved.push_back(std::move(tensor));
  }
  return saved;
}

bool SavesTiedEmbedding(const ModelConfig& model, const AdapterConfig& adapter) {
  return model.tied_embeddings && adapter.Saves(kEmbeddingModule);
}

std::vector<std::string> OtherModules(const ModelConfig& model) {
  std::vector<std::string> paths = {"",           kHeadModule,       "model", kEmbeddingModule, "model.layers",
                                    "model.norm", "model.rotary_emb"};
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string path = StrCat("model.layers.", layer);
    for (const char* end : {"", ".self_attn", ".mlp", ".mlp.act_fn"}) paths.push_back(StrCat(path, end));
    for (int n = 0; n < kNumNorms; ++n) {
      const auto norm = static_cast<Norm>(n);
      if (HasNorm(model, norm)) paths.push_back(ModuleOf(NormName(layer, norm)));
    }
  }
  return paths;
}

std::string SavedModulesProblem(const ModelConfig& model, const AdapterConfig& adapter, bool int8_head) {
  for (const std::string& text : adapter.modules_to_save) {
    AdapterConfig one;
    one.modules_to_save = {text};
    const std::string wrong = WrongMatch(model, text);
    if (wrong == kHeadModule) {
      return StrCat("has \"", text,
                    "\", but the head of this model is its embedding, wanted embed_tokens, which trains both");
    }
    if (!wrong.empty()) {
      return StrCat("has \"", text, "\", which matches \"", wrong, "\", wanted only embed_tokens, lm_head and norms");
    }
    const std::vector<TensorSpec> matches = SavedTensors(model, one);
    if (matches.empty()) {
      return StrCat("has \"", text, "\", which matches no module, wanted an end of a path such as \"",
                    ModuleOf(NormName(model.num_layers - 1, Norm::kInput)), "\"");
    }
    const bool is_head = matches.back().role == TensorRole::kHead || SavesTiedEmbedding(model, one);
    if (is_head && int8_head) {
      return StrCat("has \"", text,
                    "\", but the base has an int8 head, wanted a base with a float head (nibble models "
                    "convert --to int8 --head bf16)");
    }
  }
  return "";
}

}  // namespace nibble::model
