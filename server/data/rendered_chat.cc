#include "server/data/rendered_chat.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::data {
namespace {

using Part = text::RenderedTurns::Part;

// The time that templates see. It is fixed so that the tokens of a dataset do not depend on when they were made. The
// date is the same in all time zones below UTC+12. Llama 3.1's own template falls back to it.
constexpr std::int64_t kTemplateTime = 1'721'995'200;  // 2024-07-26, 12:00 UTC

absl::Status TemplateError(std::string_view message) {
  return base::WithReason(absl::InvalidArgumentError(base::StrCat("chat template: ", message)), "TEMPLATE_ERROR",
                          {{"field", "messages"}});
}

constexpr char kBlanks[] = " \t\r\n\f\v";
constexpr char kNoLoop[] = "no loop over the messages in the template renders it";

// A conversation. Any number of messages from the first can be rendered.
class Conversation {
 public:
  Conversation(const base::Json& messages, const Row& row, const text::ChatTemplate& chat,
               const base::Cancelled& cancelled)
      : row_(row), chat_(chat), cancelled_(cancelled) {
    for (const base::Json& message : messages) {
      if (!ends_.empty()) json_ += ',';
      json_ += base::Dump(message);
      ends_.push_back(json_.size());
      const auto content = message.find("content");
      contents_.push_back(content != message.end() && content->is_string() ? content->get<std::string>() : "");
    }
  }

  std::size_t size() const { return ends_.size(); }
  // An error about a message.
  absl::Status NotFound(std::size_t message, std::string_view why) const {
    return TemplateError(
        base::StrCat(MessageName(message, row_.roles[message]), " is not found in the rendered conversation: ", why,
                     "; set train_on_prompt without \"train\" in any message, or use another template"));
  }
  bool answers(std::size_t message) const { return row_.roles[message] == "assistant"; }
  // The content without the blanks at its ends, which templates strip; "" if it is not text.
  std::string_view words(std::size_t message) const {
    const std::string_view content = contents_[message];
    const std::size_t begin = content.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return {};
    return content.substr(begin, content.find_last_not_of(kBlanks) + 1 - begin);
  }
  // True for messages that templates may move or omit.
  bool instructs(std::size_t message) const {
    return row_.roles[message] == "system" || row_.roles[message] == "developer";
  }

  absl::StatusOr<std::string> Render(std::size_t count, bool add_generation_prompt) const {
    return Ask([&](const std::string& messages) { return chat_.RenderJson(messages, Options(add_generation_prompt)); },
               count);
  }
  absl::StatusOr<text::RenderedTurns> RenderTurns(std::size_t count, bool add_generation_prompt) const {
    return Ask([&](const std::string& messages) { return chat_.RenderTurns(messages, Options(add_generation_prompt)); },
               count);
  }

 private:
  text::RenderOptions Options(bool add_generation_prompt) const {
    text::RenderOptions options;
    options.add_generation_prompt = add_generation_prompt;
    options.tools_json = row_.tools_json;
    options.now_unix_seconds = kTemplateTime;
    return options;
  }
  template <typename Work>
  auto Ask(Work work, std::size_t count) const -> decltype(work(std::string())) {
    if (cancelled_ && cancelled_()) return absl::CancelledError("cancelled while rendering a conversation");
    const std::string_view messages = std::string_view(json_).substr(0, count == 0 ? 0 : ends_[count - 1]);
    auto rendered = work(base::StrCat("[", messages, "]"));
    if (!rendered.ok()) return TemplateError(base::ToStd(rendered.status().message()));
    return rendered;
  }

  const Row& row_;
  const text::ChatTemplate& chat_;
  const base::Cancelled& cancelled_;
  std::vector<std::string> contents_;
  std::string json_;               // the messages, separated by commas
  std::vector<std::size_t> ends_;  // end of each message in json_
};

// The range of message `i` in `full`: compares a conversation that ends with the message with one that ends before it.
absl::StatusOr<std::pair<std::size_t, std::size_t>> ByPrefixes(const Conversation& conversation,
                                                               const std::string& full, std::size_t i) {
  std::string before;
  if (i > 0 || conversation.answers(i)) {  // many templates refuse a conversation without messages
    NIBBLE_ASSIGN_OR_RETURN(before, conversation.Render(i, conversation.answers(i)));
  }
  std::string after = full;  // saves a rendering in the most common case: this message is the last
  if (i + 1 < conversation.size()) {
    NIBBLE_ASSIGN_OR_RETURN(after, conversation.Render(i + 1, false));
  }
  if (!full.starts_with(after) || !after.starts_with(before)) {
    return conversation.NotFound(i, "it does not continue the text before it");
  }
  return std::pair(before.size(), after.size());
}

// Positions of the turns of a whole conversation.
class Turns {
 public:
  Turns(const Conversation& conversation, const text::RenderedTurns& rendered)
      : conversation_(conversation), rendered_(rendered) {
    for (const Part& turn : rendered.turns) {
      if (turn.empty()) continue;
      first_ = std::min(first_, turn.begin);
      last_ = std::max(last_, turn.end);
    }
  }

  // The turn of message `i`. The last turn includes what the template prints after the whole conversation.
  Part At(std::size_t i) const {
    Part turn = rendered_.turns[i];
    if (i + 1 == conversation_.size() && turn.end == last_) turn.end = rendered_.text.size();
    return turn;
  }

  // Returns one range for each of the `wanted` messages, which must be in ascending order.
  absl::StatusOr<ByteRanges> Find(const std::vector<std::size_t>& wanted) const {
    for (const std::size_t i : wanted) {
      if (rendered_.turns[i].empty()) return conversation_.NotFound(i, kNoLoop);
    }
    // Another message without a turn may have been printed inside a wanted turn, so it is refused unless its text is
    // before all turns: Llama 3.1, for example, prints the first question with the tools, before its loop over
    // messages.
    const std::string_view preamble =
        std::string_view(rendered_.text).substr(0, std::min(first_, rendered_.text.size()));
    bool leads = true;  // no message so far has a turn
    for (std::size_t i = 0; i < conversation_.size(); ++i) {
      if (!rendered_.turns[i].empty()) {
        leads = false;
        continue;
      }
      const std::string_view words = conversation_.words(i);
      const bool stands_before = leads && !words.empty() && preamble.find(words) != std::string_view::npos;
      if (!stands_before && !conversation_.instructs(i)) return conversation_.NotFound(i, kNoLoop);
    }
    const auto answer =
        std::find_if(wanted.rbegin(), wanted.rend(), [&](std::size_t i) { return conversation_.answers(i); });
    std::string prompt;
    if (answer != wanted.rend()) {
      NIBBLE_ASSIGN_OR_RETURN(prompt, GenerationPrompt(*answer));
    }
    ByteRanges ranges;
    for (const std::size_t i : wanted) {
      auto [begin, end] = At(i);
      if (conversation_.answers(i)) {
        // The model is asked to write what follows the prompt.
        if (!std::string_view(rendered_.text).substr(begin, end - begin).starts_with(prompt)) {
          return conversation_.NotFound(i, "it does not begin with the generation prompt");
        }
        begin += prompt.size();
      } else if (i == 0 && begin == first_) {
        begin = 0;  // as in ByPrefixes: the first message includes the text before it
      }
      ranges.emplace_back(begin, end);
    }
    return ranges;
  }

 private:
  // The text that the template puts before an answer of the model.
  absl::StatusOr<std::string> GenerationPrompt(std::size_t answer) const {
    NIBBLE_ASSIGN_OR_RETURN(const std::string asked, conversation_.Render(answer, true));
    const std::string_view before = std::string_view(rendered_.text).substr(0, rendered_.turns[answer].begin);
    if (asked.starts_with(before)) return asked.substr(before.size());
    // The template renders the conversation differently when it ends before the answer.
    NIBBLE_ASSIGN_OR_RETURN(const std::string closed, conversation_.Render(answer, false));
    if (asked.starts_with(closed)) return asked.substr(closed.size());
    // The template may print an end token where the generation prompt would be. Then both renderings must be equal up
    // to the end of the last turn, and the rest of `asked` is the generation prompt.
    NIBBLE_ASSIGN_OR_RETURN(const text::RenderedTurns asked_turns, conversation_.RenderTurns(answer, true));
    NIBBLE_ASSIGN_OR_RETURN(const text::RenderedTurns closed_turns, conversation_.RenderTurns(answer, false));
    const std::size_t end = Turns(conversation_, asked_turns).last_;
    if (end == 0 || end != Turns(conversation_, closed_turns).last_ || asked.compare(0, end, closed, 0, end) != 0) {
      return conversation_.NotFound(answer, "the generation prompt before it is not found");
    }
    return asked.substr(end);
  }

  const Conversation& conversation_;
  const text::RenderedTurns& rendered_;
  std::size_t first_ = SIZE_MAX;  // first byte of any turn
  std::size_t last_ = 0;          // the end of the last turn
};

// The {% generation %} blocks of the answers, and the turns of other messages.
absl::StatusOr<ByteRanges> ByGeneration(const Conversation& conversation, const text::RenderedTurns& rendered,
                                        const std::vector<std::size_t>& wanted, bool all_answers) {
  ByteRanges ranges;
  if (all_answers) {
    for (const Part& block : rendered.generation) ranges.emplace_back(block.begin, block.end);
    return ranges;
  }
  const Turns turns(conversation, rendered);
  std::vector<std::size_t> others;
  for (const std::size_t i : wanted) {
    if (!conversation.answers(i)) {
      others.push_back(i);
      continue;
    }
    if (rendered.turns[i].empty()) return conversation.NotFound(i, kNoLoop);
    const Part turn = turns.At(i);
    for (const Part& block : rendered.generation) {
      if (turn.begin <= block.begin && block.end <= turn.end) ranges.emplace_back(block.begin, block.end);
    }
  }
  if (others.empty()) return ranges;
  NIBBLE_ASSIGN_OR_RETURN(const ByteRanges found, turns.Find(others));
  ranges.insert(ranges.end(), found.begin(), found.end());
  return ranges;
}

bool IsRefusal(const absl::Status& status) { return !status.ok() && !absl::IsCancelled(status); }

// Renders the conversation and finds the wanted messages.
absl::StatusOr<RenderedChat> FindTurns(const Conversation& conversation, const std::vector<std::size_t>& wanted,
                                       bool has_generation, bool all_answers) {
  RenderedChat chat;
  if (!has_generation && wanted.size() == 1) {
    // Comparing prefixes finds a single turn with fewer renderings.
    NIBBLE_ASSIGN_OR_RETURN(chat.text, conversation.Render(conversation.size(), false));
    const auto range = ByPrefixes(conversation, chat.text, wanted.front());
    if (range.ok()) {
      chat.trained.push_back(*range);
      return chat;
    }
    if (!IsRefusal(range.status())) return range.status();
  }
  NIBBLE_ASSIGN_OR_RETURN(text::RenderedTurns rendered, conversation.RenderTurns(conversation.size(), false));
  absl::StatusOr<ByteRanges> found = conversation.NotFound(wanted.front(), rendered.unknown);
  if (rendered.unknown.empty()) {
    found = has_generation ? ByGeneration(conversation, rendered, wanted, all_answers)
                           : Turns(conversation, rendered).Find(wanted);
  }
  chat.text = std::move(rendered.text);
  if (found.ok()) {
    chat.trained = *std::move(found);
    return chat;
  }
  if (!IsRefusal(found.status()) || has_generation) return found.status();
  for (const std::size_t i : wanted) {
    const auto range = ByPrefixes(conversation, chat.text, i);
    if (!range.ok()) return IsRefusal(range.status()) ? found.status() : range.status();
    chat.trained.push_back(*range);
  }
  return chat;
}

}  // namespace

absl::StatusOr<RenderedChat> RenderChat(const Row& row, const text::ChatTemplate& chat, bool train_on_prompt,
                                        const base::Cancelled& cancelled) {
  NIBBLE_ASSIGN_OR_RETURN(const base::Json messages, base::ParseJson(row.messages_json));
  const Conversation conversation(messages, row, chat, cancelled);
  // Only these messages must be found in the text: the trained ones, or with train_on_prompt the untrained ones.
  std::vector<std::size_t> wanted;
  bool all_answers = !train_on_prompt;  // all answers are trained, and nothing else
  for (std::size_t i = 0; i < conversation.size(); ++i) {
    const bool is_trained = row.train[i].value_or(train_on_prompt || conversation.answers(i));
    if (is_trained != train_on_prompt) wanted.push_back(i);
    all_answers = all_answers && is_trained == conversation.answers(i);
  }
  if (wanted.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(std::string text, conversation.Render(conversation.size(), false));
    const std::size_t end = train_on_prompt ? text.size() : 0;
    return RenderedChat{.text = std::move(text), .trained = {{0, end}}};
  }
  NIBBLE_ASSIGN_OR_RETURN(RenderedChat found, FindTurns(conversation, wanted, chat.has_generation(), all_answers));
  if (train_on_prompt) {
    std::sort(found.trained.begin(), found.trained.end());
    ByteRanges rest;
    std::size_t from = 0;
    for (const auto& [begin, end] : found.trained) {
      rest.emplace_back(from, begin);
      from = std::max(from, end);
    }
    rest.emplace_back(from, found.text.size());
    found.trained = std::move(rest);
  }
  return found;
}

}  // namespace nibble::data
