#include "server/text/chat_template.h"

#include <cstdint>
#include <ctime>

#include "absl/status/status.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"
#include "server/text/ffi_result.h"

namespace nibble::text {
namespace {

NibbleRenderInput InputOf(std::string_view messages_json, const RenderOptions& options) {
  return {
      .messages = FfiText(messages_json),
      .tools = FfiText(options.tools_json),
      .variables = FfiText(options.variables_json),
      .add_generation_prompt = options.add_generation_prompt,
      .now_unix_seconds = options.now_unix_seconds.value_or(std::time(nullptr)),
  };
}

std::vector<RenderedTurns::Part> PartsOf(const FfiBytes& bytes) {
  const auto ends = CopyAs<std::uint64_t>(bytes.view());
  std::vector<RenderedTurns::Part> parts(ends.size() / 2);
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = {.begin = ends[2 * i], .end = ends[2 * i + 1]};
  return parts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Compile(std::string_view source,
                                                                    const SpecialTokens& special_tokens) {
  std::string json = "{";
  for (const auto& [name, token] : special_tokens) {
    if (!base::IsValidUtf8(name) || !base::IsValidUtf8(token)) {
      return absl::InvalidArgumentError("special_tokens: not UTF-8");
    }
    if (json.size() > 1) json += ',';
    base::AppendJsonString(name, &json);
    json += ':';
    base::AppendJsonString(token, &json);
  }
  json += '}';
  NibbleTemplate* handle = nullptr;
  FfiBytes answer;
  const NibbleTextCode code = nibble_template_compile(FfiText(source), FfiText(json), &handle, answer.out());
  NIBBLE_RETURN_IF_ERROR(FfiStatus(code, "chat_template", answer));
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(handle));
}

ChatTemplate::~ChatTemplate() { nibble_template_free(handle_); }

absl::StatusOr<std::string> ChatTemplate::Render(std::span<const ChatMessage> messages,
                                                 const RenderOptions& options) const {
  std::string json = "[";
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    if (!base::IsValidUtf8(role) || !base::IsValidUtf8(content)) {
      return absl::InvalidArgumentError(base::StrCat("messages[", i, "]: not UTF-8"));
    }
    json += i == 0 ? "{\"role\":" : ",{\"role\":";
    base::AppendJsonString(role, &json);
    json += ",\"content\":";
    base::AppendJsonString(content, &json);
    json += '}';
  }
  json += ']';
  return RenderJson(json, options);
}

absl::StatusOr<std::string> ChatTemplate::RenderJson(std::string_view messages_json,
                                                     const RenderOptions& options) const {
  const NibbleRenderInput input = InputOf(messages_json, options);
  FfiBytes answer;
  const NibbleTextCode code = nibble_template_render(handle_, &input, answer.out());
  NIBBLE_RETURN_IF_ERROR(FfiStatus(code, "chat_template", answer));
  return std::string(answer.view());
}

absl::StatusOr<RenderedTurns> ChatTemplate::RenderTurns(std::string_view messages_json,
                                                        const RenderOptions& options) const {
  const NibbleRenderInput input = InputOf(messages_json, options);
  FfiBytes answer, turns, generation, unknown;
  const NibbleTextCode code =
      nibble_template_render_turns(handle_, &input, turns.out(), generation.out(), unknown.out(), answer.out());
  NIBBLE_RETURN_IF_ERROR(FfiStatus(code, "chat_template", answer));
  return RenderedTurns{.text = std::string(answer.view()),
                       .turns = PartsOf(turns),
                       .generation = PartsOf(generation),
                       .unknown = std::string(unknown.view())};
}

bool ChatTemplate::has_generation() const { return nibble_template_has_generation(handle_); }

}  // namespace nibble::text
