#include "server/model/text_assets.h"

#include <array>

#include "server/base/files.h"
#include "server/base/json.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/file_names.h"
#include "server/model/text_digest.h"

namespace nibble::model {
namespace {

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{4} << 20;

// tokenizer_config.json writes a special token as a string or as {"content": ...}.
text::ChatTemplate::SpecialTokens SpecialTokens(const base::Json& config) {
  text::ChatTemplate::SpecialTokens tokens;
  for (const char* name :
       std::array{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const auto it = config.find(name);
    if (it == config.end()) continue;
    if (it->is_string()) {
      tokens.emplace_back(name, it->get<std::string>());
    } else if (it->is_object() && it->contains("content") && (*it)["content"].is_string()) {
      tokens.emplace_back(name, (*it)["content"].get<std::string>());
    }
  }
  return tokens;
}

// "chat_template" is a string, or a list of {"name", "template"}; chats use the entry named "default", and chats with
// tools the one named "tool_use". "" if there is no such entry.
std::string TemplateOf(const base::Json& config, const char* name) {
  const auto it = config.find("chat_template");
  if (it == config.end()) return "";
  if (it->is_string()) return it->get<std::string>();
  if (!it->is_array()) return "";
  for (const base::Json& entry : *it) {
    if (!entry.is_object() || !entry.contains("name") || !entry.contains("template")) continue;
    if (entry["name"] == name && entry["template"].is_string()) {
      return entry["template"].get<std::string>();
    }
  }
  return "";
}

absl::Status Annotate(const absl::Status& status, std::string_view file) {
  return absl::Status(status.code(), base::StrCat(file, ": ", base::ToStd(status.message())));
}

}  // namespace

std::string TextDigest(const std::string& tokenizer_sha256, const std::string& config_sha256,
                       const std::string& template_sha256) {
  std::string digests = tokenizer_sha256;
  if (!config_sha256.empty()) digests += base::StrCat(" config ", config_sha256);
  if (!template_sha256.empty()) digests += base::StrCat(" template ", template_sha256);
  return base::Sha256Hex(digests);
}

absl::StatusOr<TextAssets> LoadTextAssets(const std::string& directory) {
  base::FileSystem& files = base::RealFileSystem();
  TextAssets assets;
  const std::string tokenizer_path = base::JoinPath(directory, kTokenizerFile);
  if (!files.Exists(tokenizer_path)) return absl::NotFoundError("the model has no tokenizer.json");
  NIBBLE_ASSIGN_OR_RETURN(const std::string tokenizer_json, files.Read(tokenizer_path, kMaxTokenizerBytes));
  auto tokenizer = text::Tokenizer::FromJson(tokenizer_json);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), kTokenizerFile);
  assets.tokenizer = *std::move(tokenizer);
  std::string config_sha256, template_sha256;

  base::Json config = base::Json::object();
  const std::string config_path = base::JoinPath(directory, kTokenizerConfigFile);
  if (files.Exists(config_path)) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string text, files.Read(config_path, kMaxConfigBytes));
    auto parsed = base::ParseJson(text);
    if (!parsed.ok()) return Annotate(parsed.status(), kTokenizerConfigFile);
    if (!parsed->is_object()) return absl::InvalidArgumentError("tokenizer_config.json: wanted an object");
    config_sha256 = base::Sha256Hex(text);
    config = *std::move(parsed);
  }
  // chat_template.jinja is the newer place and, if present, wins, as in transformers.
  std::string source = TemplateOf(config, "default");
  const auto listed = config.find("chat_template");
  std::string tool_source;
  if (listed != config.end() && listed->is_array()) tool_source = TemplateOf(config, "tool_use");
  const std::string jinja_path = base::JoinPath(directory, kChatTemplateFile);
  if (files.Exists(jinja_path)) {
    NIBBLE_ASSIGN_OR_RETURN(source, files.Read(jinja_path, kMaxConfigBytes));
    template_sha256 = base::Sha256Hex(source);
    tool_source.clear();
  }
  if (!source.empty()) {
    auto compiled = text::ChatTemplate::Compile(source, SpecialTokens(config));
    if (!compiled.ok()) return Annotate(compiled.status(), "chat template");
    assets.chat_template = *std::move(compiled);
    assets.tool_template = assets.chat_template;
    if (!tool_source.empty()) {
      auto with_tools = text::ChatTemplate::Compile(tool_source, SpecialTokens(config));
      if (!with_tools.ok()) return Annotate(with_tools.status(), "chat template tool_use");
      assets.tool_template = *std::move(with_tools);
    }
    assets.tool_format = text::FindToolFormat(*assets.tool_template);
    assets.template_source = std::move(source);
  }
  config.erase("chat_template");
  assets.tokenizer_config = base::Dump(config);
  assets.digest = TextDigest(base::Sha256Hex(tokenizer_json), config_sha256, template_sha256);
  return assets;
}

}  // namespace nibble::model
