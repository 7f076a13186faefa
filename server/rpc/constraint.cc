#include "server/rpc/constraint.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/strings.h"
#include "server/rpc/chat_tools.h"
#include "server/text/tool_grammar.h"

namespace nibble::rpc {

namespace {

using base::FieldError;
using base::StrCat;
using text::GrammarKind;

std::optional<Constraint> Unchecked(const v1::GenerateRequest& request) {
  switch (request.constraint_case()) {
    case v1::GenerateRequest::kJsonSchema:
      return Constraint{{GrammarKind::kJsonSchema, request.json_schema()}, "json_schema"};
    case v1::GenerateRequest::kRegex: return Constraint{{GrammarKind::kRegex, request.regex()}, "regex"};
    case v1::GenerateRequest::kLark: return Constraint{{GrammarKind::kLark, request.lark()}, "lark"};
    case v1::GenerateRequest::kChoice: {
      base::Json choices = base::Json::array();
      for (const std::string& choice : request.choice().choices()) choices.push_back(choice);
      return Constraint{{GrammarKind::kChoice, base::Dump(choices)}, "choice"};
    }
    case v1::GenerateRequest::CONSTRAINT_NOT_SET: return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::optional<Constraint>> ConstraintOf(const v1::GenerateRequest& request) {
  constexpr std::size_t kMaxBytes = text::GrammarSource::kMaxBytes;
  // The size of all choices, before they are copied.
  if (request.has_choice() && request.choice().ByteSizeLong() > kMaxBytes) {
    return FieldError("choice", StrCat("has ", request.choice().ByteSizeLong(), " bytes, wanted at most ", kMaxBytes));
  }
  std::optional<Constraint> constraint = Unchecked(request);
  if (!constraint.has_value()) return constraint;
  const std::string& source = constraint->source.text;
  if (source.empty()) return FieldError(constraint->field, "is empty");
  if (source.size() > kMaxBytes)
    return FieldError(constraint->field, StrCat("has ", source.size(), " bytes, wanted at most ", kMaxBytes));
  if (!MayCallTools(request)) return constraint;
  if (!request.has_json_schema()) {
    return FieldError(constraint->field,
                      "is not allowed with chat.tools, unless tool_choice is NONE; only json_schema is");
  }
  if (const auto schema = base::ParseJson(source); !schema.ok())
    return FieldError(constraint->field, base::ToStd(schema.status().message()));
  return std::nullopt;  // a part of ToolConstraint
}

std::optional<Constraint> ToolConstraint(const v1::GenerateRequest& request, const model::TextAssets& assets) {
  if (!MayCallTools(request) || !assets.tool_format.ok()) return std::nullopt;
  const auto& tools = request.chat().tools();
  const std::string& wanted = request.required_tool();
  const bool required = !wanted.empty() || request.tool_choice() == v1::TOOL_CHOICE_REQUIRED;
  const bool strict = std::any_of(tools.begin(), tools.end(), [](const v1::Tool& tool) { return tool.strict(); });
  if (!required && !strict && !request.has_json_schema()) return std::nullopt;
  text::ToolGrammarOptions options;
  if (request.has_json_schema()) options.content = base::Json::parse(request.json_schema());
  options.format = *assets.tool_format;
  options.required = required;
  // A named tool is called once, as OpenAI's API does.
  options.parallel = wanted.empty() && CallsInParallel(request);
  // A token that is not special is the marker's text.
  options.token_id = [&](std::string_view marker) -> std::optional<std::int32_t> {
    const auto id = assets.tokenizer->TokenId(marker);
    return id.has_value() && assets.tokenizer->IsSpecial(*id) ? id : std::nullopt;
  };
  for (const v1::Tool& tool : tools) {
    if (!wanted.empty() && tool.name() != wanted) continue;
    text::ToolSchema schema = {.name = tool.name()};
    if (!tool.parameters().empty()) schema.parameters = base::Json::parse(tool.parameters());
    // A call of a tool that is not strict has any arguments, unless it must be made.
    if (!required && !tool.strict()) schema.parameters = {{"type", "object"}};
    options.tools.push_back(std::move(schema));
  }
  return Constraint{{GrammarKind::kTools, text::ToolGrammar(options)}, "chat.tools"};
}

}  // namespace nibble::rpc
