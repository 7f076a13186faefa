#include "client/cli/prompt_file.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "client/cli/terminal.h"
#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"

namespace nibble::cli {
namespace {

using base::Json;
using base::StrCat;

constexpr std::size_t kMaxLineBytes = 64u << 20;
constexpr std::string_view kBlanks = " \t\r";

absl::StatusOr<std::string> TextOf(const Json& object, const char* key) {
  const auto text = object.find(key);
  if (text == object.end() || !text->is_string()) {
    return absl::InvalidArgumentError(StrCat("\"", key, "\" is not a string"));
  }
  return text->get<std::string>();
}

absl::Status AddMessages(const Json& messages, v1::ChatInput& chat) {
  if (!messages.is_array() || messages.empty()) {
    return absl::InvalidArgumentError("\"messages\" is not a list of messages");
  }
  for (const Json& message : messages) {
    if (!message.is_object()) return absl::InvalidArgumentError("a message is not an object");
    v1::ChatMessage& added = *chat.add_messages();
    NIBBLE_ASSIGN_OR_RETURN(*added.mutable_role(), TextOf(message, "role"));
    NIBBLE_ASSIGN_OR_RETURN(*added.mutable_content(), TextOf(message, "content"));
  }
  // Drops the answer that a dataset's row ends with: the models give their own answers.
  if (chat.messages_size() > 1 && chat.messages(chat.messages_size() - 1).role() == "assistant") {
    chat.mutable_messages()->RemoveLast();
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::GenerateRequest> Parse(std::string_view line, bool is_json) {
  v1::GenerateRequest request;
  if (line.size() > kMaxLineBytes) {
    return absl::InvalidArgumentError(StrCat("has ", line.size(), " bytes, wanted at most ", kMaxLineBytes));
  }
  if (!is_json) {
    if (!base::IsValidUtf8(line)) return absl::InvalidArgumentError("is not UTF-8");
    request.set_text(std::string(line));
    return request;
  }
  NIBBLE_ASSIGN_OR_RETURN(const Json row, base::ParseJson(line));
  if (!row.is_object()) return absl::InvalidArgumentError("is not a JSON object");
  if (row.contains("prompt") == row.contains("messages")) {
    return absl::InvalidArgumentError("wanted either \"prompt\" or \"messages\"");
  }
  if (row.contains("prompt")) {
    NIBBLE_ASSIGN_OR_RETURN(*request.mutable_text(), TextOf(row, "prompt"));
  } else {
    NIBBLE_RETURN_IF_ERROR(AddMessages(row["messages"], *request.mutable_chat()));
  }
  return request;
}

}  // namespace

absl::Status PromptFile::ForEach(const std::function<absl::Status(const Prompt&)>& use) const {
  std::string_view text = file_->text();
  bool first = true, is_json = false;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::size_t begin = line.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) continue;
    if (std::exchange(first, false)) is_json = line[begin] == '{';
    auto request = Parse(line, is_json);
    if (!request.ok()) {
      return base::FieldError("prompts", StrCat("line ", number, ": ", base::ToStd(request.status().message())));
    }
    NIBBLE_RETURN_IF_ERROR(use({number, *std::move(request)}));
  }
  return first ? base::FieldError("prompts", "the file has no prompt") : absl::OkStatus();
}

absl::StatusOr<PromptFile> PromptFile::Open(const std::string& path) {
  auto file = base::MappedFile::Open(path);
  if (!file.ok()) {
    return base::WithReason(
        absl::NotFoundError(StrCat("prompts: cannot read ", path, ": ", base::ToStd(file.status().message()))), "FILE");
  }
  PromptFile prompts(*std::move(file));
  NIBBLE_RETURN_IF_ERROR(prompts.ForEach([](const Prompt&) { return absl::OkStatus(); }));
  return prompts;
}

}  // namespace nibble::cli
