#include "server/text/tool_format.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "server/base/strings.h"

namespace nibble::text {
namespace {

// No template has this name.
constexpr std::string_view kProbe = "nibble_probe";
constexpr char kTools[] =
    R"([{"type":"function","function":{"name":"nibble_probe","description":"d","parameters":{"type":"object",)"
    R"("properties":{"x":{"type":"integer","description":"d"}},"required":["x"]}}}])";
constexpr char kQuestion[] = R"({"role":"user","content":"q"})";
// The id has the form that Mistral's templates demand.
constexpr char kCall[] = R"({"role":"assistant","content":"","tool_calls":[{"id":"abcdefgh1","type":"function",)"
                         R"("function":{"name":"nibble_probe","arguments":{"x":1}}}]})";

std::string WithoutBlanks(std::string_view text) {
  std::string out;
  std::copy_if(text.begin(), text.end(), std::back_inserter(out),
               [](char c) { return c != ' ' && c != '\n' && c != '\t' && c != '\r'; });
  return out;
}

// The text between the last `marker` and the end of `text`, without blanks; "-" if there is no marker.
std::string AfterLast(std::string_view text, std::string_view marker) {
  const std::size_t at = text.rfind(marker);
  return at == std::string_view::npos ? "-" : WithoutBlanks(text.substr(at + marker.size()));
}

absl::Status Fails(const char* what, const absl::Status& status) {
  return absl::InvalidArgumentError(
      base::StrCat("the chat template cannot render ", what, ": ", base::ToStd(status.message())));
}

}  // namespace

std::vector<std::string_view> MarkersOf(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes: return {kHermesBegin, kHermesEnd};
    case ToolFormat::kLlama3: return {kLlama3Begin};
    case ToolFormat::kMistralList:
    case ToolFormat::kMistralNamed: return {kMistralBegin, kMistralArguments, kMistralId};
  }
  return {};
}

absl::StatusOr<ToolFormat> FindToolFormat(const ChatTemplate& chat_template) {
  RenderOptions options;
  options.now_unix_seconds = 0;
  options.tools_json = kTools;
  const auto prompt = chat_template.RenderJson(base::StrCat("[", kQuestion, "]"), options);
  if (!prompt.ok()) return Fails("tools", prompt.status());
  if (prompt->find(kProbe) == std::string::npos)
    return absl::InvalidArgumentError("the chat template does not render tools");
  const auto rendered = chat_template.RenderJson(base::StrCat("[", kQuestion, ",", kCall, "]"), options);
  if (!rendered.ok()) return Fails("a call of a tool", rendered.status());
  // The call is after the description of the tool.
  const std::string_view text = *rendered;
  const std::size_t name = text.rfind(kProbe);
  const std::string_view before = text.substr(0, name);
  const std::string after = WithoutBlanks(text.substr(std::min(text.size(), name + kProbe.size())));
  const auto begins_call = [](std::string_view between) {
    return between == R"({"name":")" || between == R"({"arguments":{"x":1},"name":")";
  };
  if (begins_call(AfterLast(before, kHermesBegin))) return ToolFormat::kHermes;
  const std::string after_mistral = AfterLast(before, kMistralBegin);
  if (after_mistral.starts_with('[') && begins_call(std::string_view(after_mistral).substr(1)))
    return ToolFormat::kMistralList;
  const bool named = after.starts_with(kMistralArguments) || after.starts_with(kMistralId) || after.starts_with("{");
  if (after_mistral.empty() && named) return ToolFormat::kMistralNamed;
  if (WithoutBlanks(before).ends_with(R"({"name":")") && after.starts_with(R"(","parameters":{"x":1}})"))
    return ToolFormat::kLlama3;
  return absl::InvalidArgumentError(
      "the chat template writes calls of tools in an unknown form, wanted the form of Hermes, Llama 3 or Mistral");
}

}  // namespace nibble::text
