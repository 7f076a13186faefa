#include "server/text/tool_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/server/text/golden.h"

namespace nibble::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<ToolFormat> FormatOf(const std::string& source) {
  auto compiled = ChatTemplate::Compile(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  if (!compiled.ok()) return compiled.status();
  return FindToolFormat(**compiled);
}

std::string Golden(const std::string& name) {
  const base::Json golden = ReadGolden("chat_masks.json");
  for (const base::Json& chat : golden.at("templates")) {
    if (chat.at("name") == name) return chat.at("plain");
  }
  ADD_FAILURE() << name;
  return "";
}

TEST(ToolFormatTest, TemplatesLikeThoseOfKnownModelsAreRecognized) {
  EXPECT_EQ(FormatOf(Golden("qwen2")).value(), ToolFormat::kHermes);
  EXPECT_EQ(FormatOf(Golden("qwen3")).value(), ToolFormat::kHermes);
  EXPECT_EQ(FormatOf(Golden("llama3")).value(), ToolFormat::kLlama3);
  EXPECT_EQ(FormatOf(Golden("mistral")).value(), ToolFormat::kMistralList);
}

// Only the parts of a template that matter here: tools, then messages.
std::string WithCall(const std::string& call) {
  return "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}"
         "{% for c in m.tool_calls or [] %}" +
         call + "{% endfor %}{% endfor %}";
}

TEST(ToolFormatTest, CallsDecideNotWordsOfThePrompt) {
  const std::string arguments = "{{ c.function.arguments | tojson }}";
  EXPECT_EQ(FormatOf(WithCall("[TOOL_CALLS]{{ c.function.name }}[ARGS]" + arguments)).value(),
            ToolFormat::kMistralNamed);
  EXPECT_EQ(FormatOf(WithCall("[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]" + arguments)).value(),
            ToolFormat::kMistralNamed);
  EXPECT_EQ(FormatOf(WithCall("[TOOL_CALLS]{{ c.function.name }}" + arguments)).value(), ToolFormat::kMistralNamed);
  // Hermes 2 Pro writes the name after the arguments.
  EXPECT_EQ(FormatOf(WithCall("<tool_call>\n{\"arguments\": " + arguments +
                              ", \"name\": \"{{ c.function.name }}\"}\n</tool_call>"))
                .value(),
            ToolFormat::kHermes);
  EXPECT_EQ(FormatOf("<tool_call>" +
                     WithCall("<|python_tag|>{\"name\": \"{{ c.function.name }}\", \"parameters\": " + arguments + "}"))
                .value(),
            ToolFormat::kLlama3);
  const auto xml = FormatOf(WithCall("<tool_call>\n<function={{ c.function.name }}>\n</function>\n</tool_call>"));
  EXPECT_THAT(xml.status().message(), HasSubstr("in an unknown form"));
}

TEST(ToolFormatTest, TemplateWithoutToolsIsRefused) {
  for (const char* name : {"chatml", "smollm2", "phi3"}) {
    EXPECT_THAT(FormatOf(Golden(name)).status().message(), HasSubstr("does not render tools")) << name;
  }
  const auto silent = FormatOf("{% if tools %}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_THAT(silent.status().message(), HasSubstr("does not render tools")) << "naming the variable is not enough";
  const auto strict = FormatOf("{% if tools %}{{ raise_exception('no tools here') }}{% endif %}");
  EXPECT_EQ(strict.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(strict.status().message(), HasSubstr("no tools here"));
  const auto calls = FormatOf(WithCall("{{ raise_exception('no calls here') }}"));
  EXPECT_THAT(calls.status().message(), HasSubstr("no calls here"));
}

TEST(ToolFormatTest, MarkersAreThoseThatAVocabularyMayHide) {
  EXPECT_THAT(MarkersOf(ToolFormat::kHermes), ElementsAre("<tool_call>", "</tool_call>"));
  EXPECT_THAT(MarkersOf(ToolFormat::kLlama3), ElementsAre("<|python_tag|>"));
  EXPECT_THAT(MarkersOf(ToolFormat::kMistralNamed), ElementsAre("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"));
}

}  // namespace
}  // namespace nibble::text
