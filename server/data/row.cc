#include "server/data/row.h"

#include <algorithm>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::data {
namespace {

constexpr std::size_t kMaxComplaints = 20;  // different errors of a file that its refusal names
constexpr std::size_t kMaxRanges = 80;      // ranges of line numbers in a refusal, which rpc/status.cc cuts to 1 KiB

bool HasText(std::string_view answer) { return answer.find_first_not_of(" \t\r\n") != std::string_view::npos; }

// Whether a chat message, whose content is valid, has text or calls tools.
bool SaysSomething(const base::Json& message) {
  const auto content = message.find("content");
  if (content->is_string() ? HasText(content->get_ref<const std::string&>()) : !content->empty()) return true;
  const auto calls = message.find("tool_calls");
  return calls != message.end() && !calls->empty();
}

absl::StatusOr<std::string> StringField(const base::Json& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end()) return absl::InvalidArgumentError(base::StrCat("no \"", key, "\""));
  if (!it->is_string()) return absl::InvalidArgumentError(base::StrCat("\"", key, "\" is not a string"));
  return it->get<std::string>();
}

absl::Status ReadMessages(const base::Json& json, Row* row) {
  const auto it = json.find("messages");
  if (it == json.end()) return absl::InvalidArgumentError("no \"messages\"");
  if (!it->is_array() || it->empty()) return absl::InvalidArgumentError("\"messages\" is not a non-empty list");
  bool learns = false;
  for (std::size_t i = 0; i < it->size(); ++i) {
    const base::Json& message = (*it)[i];
    const auto bad = [&](std::string_view what) {
      const bool has_role = row->roles.size() > i;
      return absl::InvalidArgumentError(
          base::StrCat(MessageName(i, has_role ? std::string_view(row->roles.back()) : ""), " ", what));
    };
    if (!message.is_object()) return bad("is not an object");
    const auto role = message.find("role");
    if (role == message.end() || !role->is_string()) return bad("has no \"role\"");
    row->roles.push_back(role->get<std::string>());
    const auto content = message.find("content");
    if (content == message.end() || !(content->is_string() || message.contains("tool_calls")))
      return bad("has no \"content\" string");
    const auto train = message.find("train");
    if (train != message.end() && !train->is_boolean()) return bad("has a \"train\" that is not true or false");
    row->train.push_back(train == message.end() ? std::nullopt : std::optional(train->get<bool>()));
    if (!row->train.back().value_or(row->roles.back() == "assistant")) continue;
    learns = true;
    row->has_empty_answer = row->has_empty_answer || !SaysSomething(message);
  }
  if (!learns) {
    return absl::InvalidArgumentError(
        "no message has the role \"assistant\" or \"train\": true: there is nothing to learn");
  }
  row->messages_json = base::Dump(*it);
  const auto tools = json.find("tools");
  if (tools == json.end() || tools->is_null()) return absl::OkStatus();
  if (!tools->is_array()) return absl::InvalidArgumentError("\"tools\" is not a list");
  if (!tools->empty()) row->tools_json = base::Dump(*tools);
  return absl::OkStatus();
}

absl::StatusOr<base::Json> ParseObject(std::string_view line) {
  NIBBLE_ASSIGN_OR_RETURN(base::Json json, base::ParseJson(line));
  if (!json.is_object()) return absl::InvalidArgumentError("not a JSON object");
  return json;
}

}  // namespace

std::string MessageName(std::size_t index, std::string_view role) {
  // A longer text is a mistake, not a role, and is left out of the error.
  constexpr std::size_t kMaxRole = 32;
  const std::string number = base::StrCat("message ", index + 1);
  return role.empty() || role.size() > kMaxRole ? number : base::StrCat(number, " (", role, ")");
}

const char* Name(RowFormat format) {
  switch (format) {
    case RowFormat::kText: return "text";
    case RowFormat::kPromptCompletion: return "prompt_completion";
    case RowFormat::kChat: return "chat";
  }
  return "unknown";
}

absl::StatusOr<RowFormat> ParseRowFormat(std::string_view name) {
  for (const RowFormat format : {RowFormat::kText, RowFormat::kPromptCompletion, RowFormat::kChat}) {
    if (name == Name(format)) return format;
  }
  return base::FieldError("format", base::StrCat("is \"", name, "\", wanted text, prompt_completion or chat"));
}

absl::StatusOr<RowFormat> DetectRowFormat(std::string_view line) {
  NIBBLE_ASSIGN_OR_RETURN(const base::Json json, ParseObject(line));
  if (json.contains("messages")) return RowFormat::kChat;
  if (json.contains("prompt") || json.contains("completion")) return RowFormat::kPromptCompletion;
  if (json.contains("text")) return RowFormat::kText;
  return absl::InvalidArgumentError("has none of the keys \"text\", \"prompt\" with \"completion\", \"messages\"");
}

absl::Status CheckMessages(const Row& row) {
  if (row.roles.size() <= kMaxMessages) return absl::OkStatus();
  return absl::InvalidArgumentError(
      base::StrCat("\"messages\" has ", row.roles.size(), " messages, wanted at most ", kMaxMessages));
}

bool IsBlankLine(std::string_view line) {
  return std::all_of(line.begin(), line.end(), [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
}

absl::StatusOr<Row> ParseRow(std::string_view line, RowFormat format) {
  NIBBLE_ASSIGN_OR_RETURN(const base::Json json, ParseObject(line));
  Row row;
  switch (format) {
    case RowFormat::kText: {
      NIBBLE_ASSIGN_OR_RETURN(row.text, StringField(json, "text"));
      break;
    }
    case RowFormat::kPromptCompletion: {
      NIBBLE_ASSIGN_OR_RETURN(row.prompt, StringField(json, "prompt"));
      NIBBLE_ASSIGN_OR_RETURN(row.completion, StringField(json, "completion"));
      if (row.completion.empty()) return absl::InvalidArgumentError("\"completion\" is empty");
      row.has_empty_answer = !HasText(row.completion);
      break;
    }
    case RowFormat::kChat: NIBBLE_RETURN_IF_ERROR(ReadMessages(json, &row)); break;
  }
  return row;
}

absl::Status AtLine(std::int64_t line_number, const absl::Status& status) {
  absl::Status named(status.code(), base::StrCat("line ", line_number, ": ", base::ToStd(status.message())));
  const std::string reason = base::Reason(status);
  if (!reason.empty()) return base::WithReason(named, reason, base::ReasonMetadata(status));
  return absl::IsInvalidArgument(status) ? base::WithReason(named, "DATASET_FORMAT") : named;
}

void FileValidator::Complain(std::string_view what) {
  auto found = std::find_if(complaints_.begin(), complaints_.end(), [&](const Complaint& c) { return c.what == what; });
  if (found == complaints_.end()) {
    if (complaints_.size() == kMaxComplaints || num_ranges_ == kMaxRanges) {
      ++num_unnamed_;
      return;
    }
    found = complaints_.insert(complaints_.end(), {std::string(what), {}});
  }
  if (!found->lines.empty() && found->lines.back().second == line_number_ - 1) {
    found->lines.back().second = line_number_;
  } else if (num_ranges_ == kMaxRanges) {
    ++num_unnamed_;
  } else {
    found->lines.emplace_back(line_number_, line_number_);
    ++num_ranges_;
  }
}

std::string FileValidator::ComplaintsText() const {
  std::string text;
  for (const Complaint& complaint : complaints_) {
    std::string lines;
    for (const auto& [first, last] : complaint.lines) {
      lines += base::StrCat(lines.empty() ? "" : ", ", first);
      if (last > first) lines += base::StrCat("-", last);
    }
    const bool one = complaint.lines.size() == 1 && complaint.lines[0].first == complaint.lines[0].second;
    text += base::StrCat(text.empty() ? "" : "; ", one ? "line " : "lines ", lines, ": ", complaint.what);
  }
  if (num_unnamed_ > 0) text += base::StrCat("; and ", num_unnamed_, num_unnamed_ == 1 ? " more line" : " more lines");
  return text;
}

void FileValidator::Line(std::string_view line) {
  ++line_number_;
  if (IsBlankLine(line)) return;
  if (!format_.has_value()) {
    auto detected = DetectRowFormat(line);
    if (!detected.ok()) {
      Complain(base::ToStd(detected.status().message()));
      return;
    }
    format_ = *detected;
  }
  const auto row = ParseRow(line, *format_);
  if (const absl::Status good = row.ok() ? CheckMessages(*row) : row.status(); !good.ok()) {
    Complain(base::ToStd(good.message()));
    return;
  }
  ++summary_.num_rows;
  if (row->has_empty_answer) summary_.empty_answers.Add(line_number_);
}

void FileValidator::Feed(std::string_view chunk) {
  summary_.num_bytes += static_cast<std::int64_t>(chunk.size());
  while (!chunk.empty()) {
    const std::size_t end = chunk.find('\n');
    const std::string_view piece = chunk.substr(0, end);
    if (!skipping_ && partial_.size() + piece.size() > max_line_bytes_) {
      skipping_ = true;
      partial_.clear();
    }
    if (!skipping_) partial_.append(piece);
    if (end == std::string_view::npos) return;
    chunk.remove_prefix(end + 1);
    if (skipping_) {
      ++line_number_;
      Complain(base::StrCat("longer than ", max_line_bytes_, " bytes"));
      skipping_ = false;
    } else {
      Line(partial_);
    }
    partial_.clear();
  }
}

absl::StatusOr<FileSummary> FileValidator::Finish() {
  if (skipping_) {
    ++line_number_;
    Complain(base::StrCat("longer than ", max_line_bytes_, " bytes"));
  } else if (!partial_.empty()) {
    Line(partial_);
  }
  const auto refuse = [](const std::string& text) {
    return base::WithReason(absl::InvalidArgumentError(text), "DATASET_FORMAT");
  };
  if (!complaints_.empty()) return refuse(ComplaintsText());
  if (summary_.num_rows == 0) return refuse("the file has no rows");
  summary_.format = *format_;
  return summary_;
}

}  // namespace nibble::data
