// Reads a GGUF file of one of llama.cpp's architectures in family.cc, and presents it with Hugging Face names and
// layout.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/family.h"
#include "server/model/file_names.h"
#include "server/model/float_convert.h"
#include "server/model/gguf.h"
#include "server/model/safetensors.h"
#include "server/model/weight_source.h"
#include "server/text/gguf_tokenizer.h"

namespace nibble::model {
namespace {

using base::StrCat;
using kernels::DType;

constexpr char kRopeFactorsName[] = "rope_freqs.weight";

absl::Status Unsupported(std::string_view what) {
  return base::WithReason(absl::UnimplementedError(std::string(what)), "UNSUPPORTED_MODEL");
}

// llama.cpp's name of a module (gguf-py tensor_mapping.py), and the suffix of its Hugging Face name.
struct NameRow {
  const char* gguf;
  const char* hf;
};
constexpr std::array<NameRow, 11> kLayerNames = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};

// "model.layers.3.mlp.up_proj.weight" -> "blk.3.ffn_up.weight"
std::string GgufName(const std::string& name) {
  if (name == kEmbeddingName) return "token_embd.weight";
  if (name == kFinalNormName) return "output_norm.weight";
  if (name == kHeadName) return "output.weight";
  constexpr std::string_view kPrefix = "model.layers.";
  const std::size_t layer_end = name.find('.', kPrefix.size());
  const std::size_t kind_begin = name.rfind('.');
  const std::string module = name.substr(layer_end + 1, kind_begin - layer_end - 1);
  for (const NameRow& row : kLayerNames) {
    if (module == row.hf) {
      return StrCat("blk.", name.substr(kPrefix.size(), layer_end - kPrefix.size()), ".", row.gguf,
                    name.substr(kind_begin));
    }
  }
  return "";
}

// llama.cpp rotates neighbouring pairs (2i, 2i + 1) of a head, transformers pairs (i, i + D/2). llama.cpp's converter
// therefore stores the rows of q and k interleaved (convert_hf_to_gguf.py, LlamaModel.permute). This restores their
// order.
void UndoPermutation(std::vector<float>& values, std::int64_t heads, std::int64_t head_dim) {
  const std::int64_t rows = heads * head_dim;
  const std::int64_t cols = static_cast<std::int64_t>(values.size()) / rows;
  std::vector<float> out(values.size());
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t half = 0; half < 2; ++half) {
      for (std::int64_t i = 0; i < head_dim / 2; ++i) {
        const std::int64_t to = head * head_dim + half * (head_dim / 2) + i;
        const std::int64_t from = head * head_dim + 2 * i + half;
        std::memcpy(out.data() + to * cols, values.data() + from * cols,
                    static_cast<std::size_t>(cols) * sizeof(float));
      }
    }
  }
  values = std::move(out);
}

class GgufSource : public WeightSource {
 public:
  GgufSource() : WeightSource("gguf") {}

  absl::Status Open(const std::string& path) {
    NIBBLE_ASSIGN_OR_RETURN(file_, GgufFile::Open(path));
    NIBBLE_RETURN_IF_ERROR(ReadConfig());
    NIBBLE_RETURN_IF_ERROR(ReadTokenizer());
    return CheckTensors();
  }

  absl::StatusOr<std::string> Read(const TensorSpec& spec, DType dtype) const override {
    const GgufTensor& tensor = file_->tensors().find(GgufName(spec.name))->second;
    std::vector<float> values = DequantizeGguf(tensor.type, tensor.bytes, NumElements(tensor.shape).value_or(0));
    if (const std::int64_t heads = PermutedHeads(spec); heads > 0) UndoPermutation(values, heads, config_.head_dim);
    return FromFloats(values, dtype);
  }

  std::int64_t ReadBytes(const TensorSpec& spec, DType dtype) const override {
    constexpr std::int64_t kFloatBytes = sizeof(float);
    // Read() holds the tensor in f32 and one more array of at most that size: the copy for UndoPermutation, later the
    // result.
    const std::int64_t width = kFloatBytes + (PermutedHeads(spec) > 0 ? kFloatBytes : kernels::SizeOf(dtype));
    return NumElements(spec.shape).value_or(0) * width;
  }

 private:
  // Heads whose rows are permuted in the file; 0 for a tensor without such rows.
  std::int64_t PermutedHeads(const TensorSpec& spec) const {
    if (!family_->gguf_permuted) return 0;
    if (spec.name.find(".q_proj.") != std::string::npos) return config_.num_heads;
    return spec.name.find(".k_proj.") != std::string::npos ? config_.num_kv_heads : 0;
  }

  // Turns the metadata into the config.json of a Hugging Face directory, so that one parser checks both.
  absl::Status ReadConfig() {
    NIBBLE_ASSIGN_OR_RETURN(const auto architecture, file_->String("general.architecture"));
    if (!architecture.has_value())
      return absl::InvalidArgumentError(StrCat(file_->name(), ": no general.architecture"));
    family_ = FindGgufFamily(*architecture);
    if (family_ == nullptr) {
      return Unsupported(
          StrCat("general.architecture \"", architecture->substr(0, 64), "\" (supported: llama, qwen2, qwen3)"));
    }
    NIBBLE_RETURN_IF_ERROR(RefuseOthers());
    base::Json json = {
        {"architectures", {family_->hf_architecture}}, {"model_type", family_->model_type}, {"hidden_act", "silu"}};
    const std::pair<const char*, std::string> ints[] = {{"hidden_size", Key("embedding_length")},
                                                        {"num_hidden_layers", Key("block_count")},
                                                        {"num_attention_heads", Key("attention.head_count")},
                                                        {"num_key_value_heads", Key("attention.head_count_kv")},
                                                        {"intermediate_size", Key("feed_forward_length")},
                                                        {"max_position_embeddings", Key("context_length")},
                                                        {"head_dim", Key("attention.key_length")},
                                                        {"vocab_size", Key("vocab_size")},
                                                        {"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                                        {"pad_token_id", "tokenizer.ggml.padding_token_id"}};
    for (const auto& [hf, key] : ints) {
      NIBBLE_ASSIGN_OR_RETURN(const auto value, file_->Int(key));
      if (value.has_value()) json[hf] = *value;
    }
    const auto embedding = file_->tensors().find("token_embd.weight");
    if (embedding == file_->tensors().end())
      return absl::InvalidArgumentError(StrCat(file_->name(), ": no tensor token_embd.weight"));
    json["vocab_size"] = embedding->second.shape.front();  // the weights decide; llama.vocab_size may be absent
    const std::string eps_key = Key("attention.layer_norm_rms_epsilon");
    NIBBLE_ASSIGN_OR_RETURN(const auto eps, file_->Float(eps_key));
    if (!eps.has_value()) return absl::InvalidArgumentError(StrCat(file_->name(), ": no ", eps_key));
    json["rms_norm_eps"] = *eps;
    json["tie_word_embeddings"] = !file_->tensors().contains("output.weight");
    json["attention_bias"] = file_->tensors().contains("blk.0.attn_q.bias");
    json["mlp_bias"] = file_->tensors().contains("blk.0.ffn_up.bias");
    base::Json eos = base::Json::array();
    for (const char* key :
         {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
      NIBBLE_ASSIGN_OR_RETURN(const auto id, file_->Int(key));
      if (id.has_value() && std::find(eos.begin(), eos.end(), base::Json(*id)) == eos.end()) eos.push_back(*id);
    }
    json["eos_token_id"] = eos;
    NIBBLE_RETURN_IF_ERROR(ReadRope(json));
    auto config = ParseHfConfig(json);
    if (!config.ok()) {
      return absl::Status(config.status().code(),
                          StrCat(file_->name(), ", metadata read as ", base::ToStd(config.status().message())));
    }
    config_ = *std::move(config);
    NIBBLE_ASSIGN_OR_RETURN(const auto rotated, file_->Int(Key("rope.dimension_count")));
    if (rotated.has_value() && *rotated != config_.head_dim) {
      return Unsupported(StrCat(Key("rope.dimension_count"), " ", *rotated, " with heads of ", config_.head_dim));
    }
    NIBBLE_ASSIGN_OR_RETURN(const auto value_length, file_->Int(Key("attention.value_length")));
    if (value_length.has_value() && *value_length != config_.head_dim) {
      return Unsupported(StrCat(Key("attention.value_length"), " ", *value_length, " with keys of ", config_.head_dim));
    }
    return CheckRopeFactors();
  }

  std::string Key(std::string_view suffix) const { return StrCat(family_->gguf, ".", suffix); }

  // Refuses keys that change the architecture.
  absl::Status RefuseOthers() const {
    for (const char* suffix : {"expert_count", "attention.sliding_window", "attention.clamp_kqv"}) {
      const std::string key = Key(suffix);
      if (!file_->Has(key)) continue;
      const auto number = file_->Int(key);
      if (!number.ok() || *number != 0) return Unsupported(StrCat(file_->name(), ": ", key));
    }
    for (const char* suffix : {"logit_scale", "embedding_scale", "residual_scale", "attention.scale"}) {
      const std::string key = Key(suffix);
      if (!file_->Has(key)) continue;
      const auto number = file_->Float(key);
      if (!number.ok() || (*number != 0.0 && *number != 1.0)) return Unsupported(StrCat(file_->name(), ": ", key));
    }
    return absl::OkStatus();
  }

  absl::Status ReadRope(base::Json& json) const {
    NIBBLE_ASSIGN_OR_RETURN(const auto theta, file_->Float(Key("rope.freq_base")));
    json["rope_theta"] = theta.value_or(10000.0);
    NIBBLE_ASSIGN_OR_RETURN(const auto type, file_->String(Key("rope.scaling.type")));
    NIBBLE_ASSIGN_OR_RETURN(const auto factor, file_->Float(Key("rope.scaling.factor")));
    NIBBLE_ASSIGN_OR_RETURN(const auto old_linear, file_->Float(Key("rope.scale_linear")));
    if (type.has_value() && *type != "none" && *type != "linear") {
      return Unsupported(StrCat(Key("rope.scaling.type"), " \"", type->substr(0, 32), "\""));
    }
    const bool linear = type.has_value() ? *type == "linear" : factor.has_value() || old_linear.has_value();
    const double by = factor.value_or(old_linear.value_or(1.0));
    if (linear && by != 1.0) json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", by}};
    return absl::OkStatus();
  }

  // Llama 3.1's scaling is stored as one divisor per frequency, not as parameters. All its models share the same low
  // and high factors and original context, so the largest divisor gives the factor. Divisors that do not match are
  // refused.
  absl::Status CheckRopeFactors() {
    const auto it = file_->tensors().find(kRopeFactorsName);
    if (it == file_->tensors().end()) return absl::OkStatus();
    const GgufTensor& tensor = it->second;
    if (tensor.type != GgufType::kF32 || tensor.shape != std::vector<std::int64_t>{config_.head_dim / 2}) {
      return absl::InvalidArgumentError(StrCat(file_->name(), ": ", kRopeFactorsName, " is ", Name(tensor.type), " ",
                                               ShapeText(tensor.shape), ", wanted F32 [", config_.head_dim / 2, "]"));
    }
    const std::vector<float> divisors = DequantizeGguf(tensor.type, tensor.bytes, config_.head_dim / 2);
    const auto plain = RopeInverseFrequencies(config_);
    if (std::all_of(divisors.begin(), divisors.end(), [](float d) { return d == 1.0f; })) return absl::OkStatus();
    ModelConfig scaled = config_;
    scaled.rope.scaling = RopeConfig::Scaling::kLlama3;
    scaled.rope.factor = static_cast<double>(*std::max_element(divisors.begin(), divisors.end()));
    scaled.rope.low_freq_factor = 1.0;
    scaled.rope.high_freq_factor = 4.0;
    scaled.rope.original_max_positions = 8192;
    const auto wanted = RopeInverseFrequencies(scaled);
    // 1e-5: the divisors are rounded to f32.
    for (std::size_t i = 0; i < divisors.size(); ++i) {
      const double got = static_cast<double>(plain[i]) / static_cast<double>(divisors[i]);
      if (config_.rope.scaling != RopeConfig::Scaling::kNone || !(std::fabs(got - wanted[i]) <= 1e-5 * wanted[i])) {
        return Unsupported(StrCat(file_->name(), ": ", kRopeFactorsName, " is not Llama 3.1's scaling (divisor ", i,
                                  " is ", divisors[i], ")"));
      }
    }
    config_.rope = scaled.rope;
    return absl::OkStatus();
  }

  absl::Status ReadTokenizer() {
    text::GgufTokenizer gguf;
    NIBBLE_ASSIGN_OR_RETURN(const auto model, file_->String("tokenizer.ggml.model"));
    if (!model.has_value()) {
      return base::WithReason(absl::NotFoundError(StrCat(file_->name(), ": no tokenizer (no tokenizer.ggml.model)")),
                              "NO_TOKENIZER");
    }
    gguf.model = *model;
    NIBBLE_ASSIGN_OR_RETURN(const auto pre, file_->String("tokenizer.ggml.pre"));
    gguf.pre = pre.value_or("");
    NIBBLE_ASSIGN_OR_RETURN(gguf.tokens, file_->Strings("tokenizer.ggml.tokens"));
    NIBBLE_ASSIGN_OR_RETURN(gguf.token_types, file_->Int32s("tokenizer.ggml.token_type"));
    NIBBLE_ASSIGN_OR_RETURN(gguf.merges, file_->Strings("tokenizer.ggml.merges"));
    NIBBLE_ASSIGN_OR_RETURN(gguf.scores, file_->Float32s("tokenizer.ggml.scores"));
    NIBBLE_ASSIGN_OR_RETURN(gguf.bos_id, file_->Int("tokenizer.ggml.bos_token_id"));
    NIBBLE_ASSIGN_OR_RETURN(gguf.eos_id, file_->Int("tokenizer.ggml.eos_token_id"));
    NIBBLE_ASSIGN_OR_RETURN(gguf.unk_id, file_->Int("tokenizer.ggml.unknown_token_id"));
    NIBBLE_ASSIGN_OR_RETURN(gguf.pad_id, file_->Int("tokenizer.ggml.padding_token_id"));
    NIBBLE_ASSIGN_OR_RETURN(gguf.add_bos, file_->Bool("tokenizer.ggml.add_bos_token"));
    NIBBLE_ASSIGN_OR_RETURN(gguf.add_eos, file_->Bool("tokenizer.ggml.add_eos_token"));
    NIBBLE_ASSIGN_OR_RETURN(gguf.add_space_prefix, file_->Bool("tokenizer.ggml.add_space_prefix"));
    NIBBLE_ASSIGN_OR_RETURN(const auto chat_template, file_->String("tokenizer.chat_template"));
    gguf.chat_template = chat_template.value_or("");
    NIBBLE_ASSIGN_OR_RETURN(text::TokenizerFiles made, text::TokenizerFilesFromGguf(gguf));
    files_[kTokenizerFile] = std::move(made.tokenizer_json);
    files_[kTokenizerConfigFile] = std::move(made.tokenizer_config_json);
    return absl::OkStatus();
  }

  absl::Status CheckTensors() {
    std::map<std::string, const GgufTensor*> rest;
    for (const auto& [name, tensor] : file_->tensors()) rest.emplace(name, &tensor);
    for (const TensorSpec& spec : RequiredTensors(config_)) {
      const std::string name = GgufName(spec.name);
      const auto it = rest.find(name);
      if (it == rest.end()) {
        return absl::InvalidArgumentError(StrCat(file_->name(), ": no tensor \"", name, "\", its metadata needs it"));
      }
      if (it->second->shape != spec.shape) {
        return absl::InvalidArgumentError(StrCat(file_->name(), ": tensor \"", name, "\" has shape ",
                                                 ShapeText(it->second->shape), ", its metadata needs ",
                                                 ShapeText(spec.shape)));
      }
      rest.erase(it);
    }
    rest.erase(kRopeFactorsName);
    if (!rest.empty()) {
      return Unsupported(
          StrCat(file_->name(), ": tensor \"", rest.begin()->first, "\" is unknown in this architecture"));
    }
    return absl::OkStatus();
  }

  std::unique_ptr<GgufFile> file_;
  const Family* family_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenGgufModel(const std::string& path) {
  auto source = std::make_unique<GgufSource>();
  NIBBLE_RETURN_IF_ERROR(source->Open(path));
  return std::unique_ptr<WeightSource>(std::move(source));
}

}  // namespace nibble::model
