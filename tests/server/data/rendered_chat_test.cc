#include "server/data/rendered_chat.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "server/base/error.h"
#include "server/base/json.h"

namespace nibble::data {
namespace {

using ::testing::HasSubstr;

constexpr char kTwoAnswers[] = R"([{"role": "user", "content": "a?"}, {"role": "assistant", "content": "first"},)"
                               R"( {"role": "user", "content": "b?"}, {"role": "assistant", "content": "second"}])";

class RenderedChatTest : public ::testing::Test {
 protected:
  // The trained parts, separated by "|"; or the error message.
  std::string Trained(const char* source, const std::string& messages = kTwoAnswers, bool train_on_prompt = false) {
    const auto chat = text::ChatTemplate::Compile(source, {{"eos_token", "</s>"}});
    EXPECT_TRUE(chat.ok()) << chat.status();
    const auto row = ParseRow("{\"messages\": " + messages + "}", RowFormat::kChat);
    EXPECT_TRUE(row.ok()) << row.status();
    asked_ = 0;
    const auto rendered = RenderChat(*row, **chat, train_on_prompt, [this] { return ++asked_ == cancelled_at_; });
    if (!rendered.ok()) {
      reason_ = base::Reason(rendered.status());
      return std::string(rendered.status().message());
    }
    EXPECT_EQ(rendered->text, *(*chat)->RenderJson(row->messages_json, {}));
    ByteRanges ranges = rendered->trained;
    std::sort(ranges.begin(), ranges.end());
    std::string all;
    for (const auto& [begin, end] : ranges) {
      if (end <= begin) continue;
      if (!all.empty()) all += '|';
      all += rendered->text.substr(begin, end - begin);
    }
    return all;
  }

  int asked_ = 0;  // one call before each rendering
  int cancelled_at_ = 0;
  std::string reason_;
};

constexpr char kRoles[] =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt "
    "%}<assistant>{% endif %}";

TEST_F(RenderedChatTest, AnswersEndWithTheirTurn) {
  EXPECT_EQ(Trained(kRoles), "first</assistant>|second</assistant>");
  EXPECT_EQ(Trained(kRoles, kTwoAnswers, /*train_on_prompt=*/true),
            "<user>a?</user><assistant>first</assistant><user>b?</user>"
            "<assistant>second</assistant>");
}

TEST_F(RenderedChatTest, CostDoesNotGrowWithTheNumberOfTurns) {
  std::string messages = "[";
  for (int i = 0; i < 512; ++i) {
    messages +=
        std::string(i == 0 ? "" : ",") + R"({"role": "user", "content": "q"}, {"role": "assistant", "content": "a"})";
  }
  const std::string trained = Trained(kRoles, messages + "]");
  EXPECT_EQ(std::count(trained.begin(), trained.end(), '|'), 511);
  EXPECT_EQ(asked_, 2) << "the whole with its turns, and what comes before the last answer";
}

TEST_F(RenderedChatTest, CancelsBetweenTwoRenderings) {
  for (cancelled_at_ = 1; cancelled_at_ <= 2; ++cancelled_at_) {
    EXPECT_THAT(Trained(kRoles), HasSubstr("cancelled"));
    EXPECT_EQ(asked_, cancelled_at_);
  }
}

// These loops read the messages, but print nothing or only blanks.
TEST_F(RenderedChatTest, LoopsThatPrintNothingAreNotTurns) {
  const std::string before =
      "{% for m in messages %}{% if m.role == 'x' %}x{% endif %} \n{% endfor %}{% for x in messages[::-1] %}{% endfor "
      "%}";
  EXPECT_EQ(Trained((before + kRoles).c_str()), "first</assistant>|second</assistant>");
}

TEST_F(RenderedChatTest, LoopsMayBreakContinueAndNest) {
  EXPECT_EQ(
      Trained(
          "{% for m in messages %}{% if m.content == 'b?' %}{% continue %}{% endif %}"
          "{% for c in m.content %}{{ c }}{% if c == 's' %}{% break %}{% endif %}{% else %}none{% endfor %};{% endfor "
          "%}",
          R"([{"role": "assistant", "content": "first"}, {"role": "system", "content": "b?"},)"
          R"( {"role": "assistant", "content": ""}])"),
      "firs;|none;");
}

TEST_F(RenderedChatTest, KeywordInNeedsNoSpaces) {
  EXPECT_EQ(
      Trained(
          "{% for (k, v)in [[1, 2]] %}{% endfor %}{% for m in(messages) %}<{{ m.role }}>{{ m.content }};{% endfor %}"
          "{% if add_generation_prompt %}<assistant>{% endif %}"),
      "first;|second;");
}

// Text that ends the prompt is part of the generation prompt, wherever the template prints it.
TEST_F(RenderedChatTest, GenerationPromptMayBePrintedInTheLoop) {
  EXPECT_EQ(Trained("{% for m in messages %}<{{ m.role }}>{{ m.content }};{% if loop.last and add_generation_prompt "
                    "%}<assistant>{% endif %}"
                    "{% endfor %}"),
            "first;|second;");
  EXPECT_EQ(Trained("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}\n### Answer:\n{% else %}{{ "
                    "m.content }}</s>\n{% endif %}"
                    "{% endfor %}"),
            "first</s>\n|second</s>\n");
}

TEST_F(RenderedChatTest, EndTokenOfTheConversationIsNotTheGenerationPrompt) {
  EXPECT_EQ(Trained("{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}{{ '<assistant>' if "
                    "add_generation_prompt else '<end>' }}"),
            "first;|second;<end>");
  // As above, but a question is rendered with '!' while it is the last message: the whole conversation does not begin
  // with the text of a part that ends with a question.
  EXPECT_EQ(
      Trained(
          "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ '!' if m.role == 'user' and loop.last }};{% endfor %}"
          "{{ '<assistant>' if add_generation_prompt else '<end>' }}"),
      "first;|second;<end>");
  EXPECT_EQ(asked_, 5)
      << "the whole; then the part before the last answer, with and without the generation prompt, each as text "
         "and with its turns";
}

// Llama 3.1 renders the first question before the loop if there are tools. A question that is rendered together with
// its answer is refused.
TEST_F(RenderedChatTest, FirstQuestionMayBeRenderedBeforeTheLoop) {
  EXPECT_EQ(
      Trained(
          "Ask: {{ messages[0].content | trim }};{% for m in messages[1:] %}<{{ m.role }}>{{ m.content }};{% endfor %}"
          "{% if add_generation_prompt %}<assistant>{% endif %}"),
      "first;|second;");
  EXPECT_THAT(Trained("Ask: {% for m in messages %}{% if m.role == 'assistant' %}{{ messages[loop.index0 - 1].content "
                      "}}{{ m.content }}"
                      "{{ '!' if loop.last }}{% endif %}{% endfor %}"),
              HasSubstr("message 1 (user) is not found in the rendered conversation"));
}

// Turns are not located by their words, so a template may change the contents.
TEST_F(RenderedChatTest, ContentsMayBeChanged) {
  EXPECT_EQ(
      Trained(
          "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] | trim | upper }}</s>{% endfor %}"
          "{% if add_generation_prompt %}<assistant>{% endif %}",
          R"([{"role": "user", "content": "a?"}, {"role": "assistant", "content": "<think>hm</think>\n\n first "},)"
          R"( {"role": "user", "content": "first"}, {"role": "assistant", "content": "</think>second"}])"),
      "FIRST</s>|SECOND</s>");
}

TEST_F(RenderedChatTest, MarksInTheTextAreOrdinaryText) {
  const std::string strange = "\uE0F00123456789abcdef\uE0F1t1,0;\uE0F0;g;e1;";
  EXPECT_EQ(Trained(kRoles, R"([{"role": "user", "content": ")" + strange +
                                R"("}, {"role": "assistant", "content": ")" + strange +
                                R"("}, {"role": "user", "content": "b?"}, {"role": "assistant", "content": "t1,1;"}])"),
            strange + "</assistant>|t1,1;</assistant>");
}

// Turns cannot be marked in these templates. Rendering a part alone still locates a turn if the whole begins with that
// part.
TEST_F(RenderedChatTest, PrefixesAreComparedIfTurnsCannotBeMarked) {
  for (const char* source :
       {"{% for i in range(messages | length) %}<{{ messages[i].role }}>{{ messages[i].content }};{% endfor %}",
        "{% set all %}{% for m in messages %} <{{ m.role }}>{{ m.content }};{% endfor %}{% endset %}{{ all | trim }}",
        "{% set all %}{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}{% endset %}{{ all | lower }}",
        "{% for m in messages | map(attribute='content') %}{{ loop.index }}. {{ m }};{% endfor %}"}) {
    const std::string trained = Trained(source);
    EXPECT_THAT(trained, HasSubstr("first;|")) << source;
    EXPECT_THAT(trained, HasSubstr("second;")) << source;
    EXPECT_THAT(trained, ::testing::Not(HasSubstr("a?"))) << source;
    EXPECT_THAT(trained, ::testing::Not(HasSubstr("b?"))) << source;
  }
}

// There is never a wrong mask: if a turn is not found, the error names its message.
TEST_F(RenderedChatTest, TurnsThatAreNotFoundAreRefused) {
  struct Case {
    const char *source, *message;
  };
  for (const Case& c : {
           // Changes the last message, and has no loop over messages.
           Case{"{% for i in range(messages | length) %}{{ messages[i].content }}{{ '!' if loop.last }};{% endfor %}",
                "message 2 (assistant) is not found"},
           // Both messages are in the question's turn.
           Case{"{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{{ messages[loop.index].content }}{{ "
                "'!' if loop.last }}{% endif %}"
                "{% endfor %}{{ messages | length }}",
                "message 2 (assistant) is not found"},
           // No answer begins with the generation prompt.
           Case{"{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}{% if add_generation_prompt "
                "%}<assistant><think>{% endif %}",
                "message 2 (assistant) is not found in the rendered conversation: it does not begin with the "
                "generation prompt"},
           // Messages are printed twice.
           Case{"{% for m in messages %}{{ m.content }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}",
                "message 1 is rendered twice"},
           // The questions come after the answers.
           Case{"{% for m in messages if m.role != 'user' %}{{ m.content }}{% endfor %}{{ messages[0].content }}{{ "
                "messages[2].content }}",
                "message 1 (user) is not found"},
       }) {
    reason_.clear();
    EXPECT_THAT(Trained(c.source), HasSubstr(c.message)) << c.source;
    EXPECT_EQ(reason_, "TEMPLATE_ERROR") << c.source;
  }
}

TEST_F(RenderedChatTest, GenerationBlocksDefineTheTrainedText) {
  const char source[] =
      "{% for m in messages %}\n<{{ m.role }}>\n{% if m.role == 'assistant' %}[{% generation %}{{ m.content }}{% "
      "endgeneration %}]"
      "{% else %}{{ m.content }}{% endif %}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
  EXPECT_EQ(Trained(source), "first|second");
  EXPECT_EQ(asked_, 1);
  EXPECT_EQ(Trained(source, R"([{"role": "user", "content": "a?", "train": true},)"
                            R"( {"role": "assistant", "content": "first", "train": false},)"
                            R"( {"role": "assistant", "content": "second"}])"),
            "<user>\na?|second");
  // Blocks in raw text and comments are ordinary text.
  EXPECT_EQ(Trained((std::string("{# {% generation %} #}{% raw %}{% generation %}{% endraw %}") + kRoles).c_str()),
            "first</assistant>|second</assistant>");
}

}  // namespace
}  // namespace nibble::data
