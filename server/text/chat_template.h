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
  // JSON object of what else the template reads ("enable_thinking"); it wins over
  // a special token of the same name. Empty: nothing.
  std::string variables_json;
  // For strftime_now, in local time. Absent: the system's clock.
  std::optional<std::int64_t> now_unix_seconds;
};

// A rendering, and which of its bytes belong to which message.
struct RenderedTurns {
  struct Part {
    std::size_t begin = 0;
    std::size_t end = 0;  // after the last byte
    bool empty() const { return begin == end; }
  };
  std::string text;  // as RenderJson gives it
  // One a message: what the template prints while a loop over messages is at it, with
  // the marks of its role and its end. Empty where that is nothing but whitespace.
  // Disjoint.
  std::vector<Part> turns;
  std::vector<Part> generation;  // the bodies of {% generation %} blocks, in order
  // Why `turns` and `generation` could not be found: both are empty then. Else "".
  std::string unknown;
};

// Templates come with models that anybody may have written, so they run in a
// sandbox: no loader, no attribute that is not data, and limits on instructions,
// recursion, memory and output. Thread-safe: nothing changes after Compile.
//
// Known differences from transformers: `~` writes None, True and False in lower
// case.
class ChatTemplate {
 public:
  // Name and text, such as {"bos_token", "<s>"}; the names are the template's.
  using SpecialTokens = std::vector<std::pair<std::string, std::string>>;

  // Errors: InvalidArgument (syntax, with its line; more than 256 KiB).
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Compile(
      std::string_view source, const SpecialTokens& special_tokens);

  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;
  ~ChatTemplate();

  // Errors: InvalidArgument (what raise_exception was given, an operation that
  // fails, a limit, JSON that is none). Starts a thread for the time of the call:
  // values that nest deeply need a deep stack.
  absl::StatusOr<std::string> Render(std::span<const ChatMessage> messages,
                                     const RenderOptions& options) const;
  // messages_json: an array of objects; every field reaches the template.
  absl::StatusOr<std::string> RenderJson(std::string_view messages_json,
                                         const RenderOptions& options) const;
  // Renders twice: as RenderJson does, and with a mark at both ends of each turn. Turns
  // are known only where the second text without its marks is the first.
  // Errors: as RenderJson.
  absl::StatusOr<RenderedTurns> RenderTurns(std::string_view messages_json,
                                            const RenderOptions& options) const;
  // Whether the template has a {% generation %} block, which says what of a turn the
  // model itself writes.
  bool has_generation() const;

 private:
  explicit ChatTemplate(NibbleTemplate* handle) : handle_(handle) {}

  NibbleTemplate* const handle_;
};

}  // namespace nibble::text
