// A model's chat template, rendered as transformers renders it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

struct NibbleTemplate;

namespace nibble::text {

struct ChatMessage {
  std::string role;
  std::string content;
};

struct RenderOptions {
  bool add_generation_prompt = false;
  // JSON array of tool schemas; empty: the template sees none.
  std::string tools_json;
  // JSON object with the template's other variables ("enable_thinking"). A variable
  // overrides a special token of the same name. Empty: no variables.
  std::string variables_json;
  // For strftime_now, in local time. Absent: the system's clock.
  std::optional<std::int64_t> now_unix_seconds;
};

// A rendering, and which of its bytes belong to each message.
struct RenderedTurns {
  struct Part {
    std::size_t begin = 0;
    std::size_t end = 0;  // after the last byte
    bool empty() const { return begin == end; }
  };
  std::string text;  // as RenderJson returns it
  // One per message: the text that a loop over messages prints for this message,
  // including the markers of its role and its end. Empty if that text is only
  // whitespace. The parts are disjoint.
  std::vector<Part> turns;
  std::vector<Part> generation;  // the bodies of {% generation %} blocks, in order
  // Why `turns` and `generation` are unknown (both are then empty), otherwise "".
  std::string unknown;
};

// Templates come with untrusted models, so they run in a sandbox: no loader, no
// attributes other than data, and limits on instructions, time, recursion, memory and
// output. Thread-safe: immutable after Compile.
//
// Known differences from transformers: `~` writes None, True and False in lower
// case.
class ChatTemplate {
 public:
  // Pairs of the name that the template uses and the text, such as {"bos_token", "<s>"}.
  using SpecialTokens = std::vector<std::pair<std::string, std::string>>;

  // Errors: InvalidArgument (syntax, with its line; more than 256 KiB; more than 64 KiB of code in its tags, or
  // expressions that are too long; more memory or time to compile than allowed; special tokens that are not UTF-8).
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Compile(std::string_view source,
                                                               const SpecialTokens& special_tokens);

  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;
  ~ChatTemplate();

  // Errors: InvalidArgument (the text given to raise_exception, a failed operation,
  // an exceeded limit, text that is not UTF-8, malformed JSON, a message that is not an
  // object, a variable named messages, tools or add_generation_prompt). Runs on a temporary thread, because deeply
  // nested values need a large stack.
  absl::StatusOr<std::string> Render(std::span<const ChatMessage> messages, const RenderOptions& options) const;
  // messages_json: an array of objects; every field reaches the template.
  absl::StatusOr<std::string> RenderJson(std::string_view messages_json, const RenderOptions& options) const;
  // Renders twice: like RenderJson, and with a mark at both ends of each turn. The
  // turns are known only if the second text without its marks equals the first.
  // Errors: as RenderJson.
  absl::StatusOr<RenderedTurns> RenderTurns(std::string_view messages_json, const RenderOptions& options) const;
  // Whether the template has a {% generation %} block, which marks the part of a turn
  // that the model writes.
  bool has_generation() const;

 private:
  explicit ChatTemplate(NibbleTemplate* handle) : handle_(handle) {}

  NibbleTemplate* const handle_;
};

}  // namespace nibble::text
