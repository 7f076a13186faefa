#include "server/text/tool_grammar.h"

#include <cstddef>

#include "server/base/strings.h"

namespace nibble::text {
namespace {

using base::Json;
using base::StrCat;

// Text that is no call in kLlama3: after blanks, it begins neither with a brace nor with the marker.
constexpr char kTextWithoutCall[] = R"(TEXT: /[ \t\r\n]+|[ \t\r\n]*[^{ \t\r\n](?s:.*)/ &)"
                                    R"( ~(/[ \t\r\n]*/ "<|python_tag|>" /(?s:.*)/))"
                                    "\n";

// Lark writes strings as JSON does.
std::string Literal(std::string_view text) { return base::Dump(Json(std::string(text))); }

// A marker: a token, or text.
std::string Marker(const ToolGrammarOptions& options, std::string_view marker) {
  const auto id = options.token_id ? options.token_id(marker) : std::nullopt;
  return id.has_value() ? StrCat("<[", *id, "]>") : Literal(marker);
}

bool IsToken(const ToolGrammarOptions& options, std::string_view marker) {
  return options.token_id && options.token_id(marker).has_value();
}

Json Schema(const ToolSchema& tool) {
  if (!tool.parameters.empty()) return tool.parameters;
  return {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
}

// The rules `call` and arguments_N: one call without the markers around it.
std::string Calls(const ToolGrammarOptions& options) {
  std::string call = "call:", arguments;
  for (std::size_t i = 0; i < options.tools.size(); ++i) {
    const ToolSchema& tool = options.tools[i];
    call += i == 0 ? " " : "\n  | ";
    if (options.format == ToolFormat::kMistralNamed) {
      call += StrCat(Literal(tool.name), " ", Marker(options, kMistralArguments), " arguments_", i);
    } else {
      const char* key = options.format == ToolFormat::kLlama3 ? "parameters" : "arguments";
      call += StrCat(Literal(StrCat(R"({"name": )", Literal(tool.name), R"(, ")", key, R"(": )")), " arguments_", i,
                     R"( "}")");
    }
    arguments += StrCat("arguments_", i, ": %json ", base::Dump(Schema(tool)), "\n");
  }
  return StrCat(call, "\n", arguments);
}

// Rules of calls that a marker begins. `after`: all after the marker. `separator`: between calls.
std::string Marked(const ToolGrammarOptions& options, std::string_view marker, const std::string& after,
                   const std::string& separator, bool repeatable) {
  const std::string begin = Marker(options, marker);
  const std::string one = StrCat(begin, " ", after);
  const std::string more = options.parallel && repeatable ? StrCat(" (", separator, one, ")*") : "";
  if (options.required) return StrCat("start: ", one, more, "\n");
  if (options.content.has_value()) return StrCat("start: content | ", one, more, "\n");
  // Text never has the marker, not even spelled with other tokens, because the parser of calls would see it.
  const std::string text = StrCat("TEXT: /(?s:.+)/ & ~(/(?s:.*)/ ", Literal(marker), " /(?s:.*)/)\n");
  if (IsToken(options, marker)) return StrCat("start: TEXT? (", one, more, ")?\n", text);
  // The lexer ends `begin` at the first marker; a marker after TEXT would come too late.
  return StrCat("start: TEXT? | begin ", after, more, "\nbegin[lazy]: /(?s:.*)/ ", begin, "\n", text);
}

}  // namespace

std::string ToolGrammar(const ToolGrammarOptions& options) {
  std::string calls = Calls(options);
  if (options.content.has_value() && !options.required)
    calls += StrCat("content: %json ", base::Dump(*options.content), "\n");
  switch (options.format) {
    case ToolFormat::kHermes:
      return Marked(options, kHermesBegin, StrCat(R"("\n" call "\n" )", Marker(options, kHermesEnd)), R"("\n" )",
                    true) +
             calls;
    case ToolFormat::kLlama3:
      if (options.required) return StrCat("start: call\n", calls);
      if (options.content.has_value()) return StrCat("start: content | call\n", calls);
      return StrCat("start: TEXT? | call\n", kTextWithoutCall, calls);
    case ToolFormat::kMistralList:
      return Marked(options, kMistralBegin,
                    options.parallel ? R"(" "? "[" call (", " call)* "]")" : R"(" "? "[" call "]")", "", false) +
             calls;
    case ToolFormat::kMistralNamed: return Marked(options, kMistralBegin, "call", "", true) + calls;
  }
  return "";
}

}  // namespace nibble::text
