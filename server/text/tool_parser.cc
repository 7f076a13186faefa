#include "server/text/tool_parser.h"

#include <algorithm>
#include <utility>

#include "server/base/json.h"
#include "server/base/strings.h"

namespace nibble::text {
namespace {

constexpr char kBlanks[] = " \n\t\r";

bool IsBlank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// A JSON string with its quotes; "" is also the result for an invalid one.
std::string Unquoted(const std::string& json) {
  const auto parsed = base::ParseJson(json);
  return parsed.ok() && parsed->is_string() ? parsed->get<std::string>() : "";
}

}  // namespace

ToolParser::ValueScanner::Found ToolParser::ValueScanner::Take(char c) {
  if (in_string_) {
    if (static_cast<unsigned char>(c) < 0x20) return Found::kError;
    if (std::exchange(escaped_, false)) return Found::kMore;
    escaped_ = c == '\\';
    if (c != '"') return Found::kMore;
    in_string_ = false;
    return closers_.empty() ? Found::kEnd : Found::kMore;
  }
  if (plain_ && (IsBlank(c) || c == ',' || c == '}' || c == ']')) return Found::kEndBefore;
  switch (c) {
    case '"': in_string_ = true; return plain_ ? Found::kError : Found::kMore;
    case '{':
    case '[':
      if (plain_ || closers_.size() == static_cast<std::size_t>(base::kMaxJsonDepth)) return Found::kError;
      closers_ += c == '{' ? '}' : ']';
      return Found::kMore;
    case '}':
    case ']':
      if (closers_.empty() || closers_.back() != c) return Found::kError;
      closers_.pop_back();
      return closers_.empty() ? Found::kEnd : Found::kMore;
    default: plain_ = closers_.empty() && !IsBlank(c); return Found::kMore;
  }
}

ToolParser::Result ToolParser::Push(std::string_view text) {
  for (const char c : text) Take(c);
  return std::exchange(result_, {});
}

ToolParser::Result ToolParser::Finish() {
  const bool blank = std::all_of(held_.begin(), held_.end(), IsBlank);
  const bool closing = state_ == State::kClose || state_ == State::kAfterItem;
  if (closing || (state_ == State::kText && after_call_ && blank)) {
    Release();
  } else {
    Fail();
  }
  return std::exchange(result_, {});
}

void ToolParser::Take(char c) {
  if (state_ == State::kText) return TakeText(c);
  held_ += c;
  switch (state_) {
    case State::kText: return;
    case State::kBegin: return TakeBegin(c);
    case State::kItem:
      if (IsBlank(c)) return;
      if (c != '{') return FailAt(c);
      state_ = State::kFirstKey;
      return;
    case State::kFirstKey:
    case State::kNextKey:
      if (IsBlank(c)) return;
      if (c == '}' && state_ == State::kFirstKey) return EndObject();
      if (c != '"') return FailAt(c);
      state_ = State::kKey;
      value_ = c;
      scanner_.Begin();
      scanner_.Take(c);
      return;
    case State::kKey: {
      value_ += c;
      const auto found = scanner_.Take(c);
      if (found == ValueScanner::Found::kError) return FailAt(c);
      if (found == ValueScanner::Found::kMore) return;
      key_ = Unquoted(value_);
      state_ = State::kColon;
      return;
    }
    case State::kColon:
      if (IsBlank(c)) return;
      if (c != ':') return FailAt(c);
      state_ = State::kValue;
      return;
    case State::kValue:
      if (!IsBlank(c)) BeginValue(c);
      return;
    case State::kInValue: return TakeValue(c);
    case State::kAfterValue:
      if (IsBlank(c)) return;
      if (c == '}') return EndObject();
      if (c != ',') return FailAt(c);
      state_ = State::kNextKey;
      return;
    case State::kClose: return TakeClose(c);
    case State::kAfterItem:
      if (IsBlank(c)) return;
      if (c == ',') {
        state_ = State::kItem;
      } else if (c == ']') {
        Release();
      } else {
        FailAt(c);
      }
      return;
    case State::kToolName:
    case State::kToolMarker:
    case State::kCallId: return TakeName(c);
  }
}

void ToolParser::TakeBegin(char c) {
  if (IsBlank(c)) return;
  if (c == '{') {
    state_ = State::kFirstKey;
  } else if (options_.format == ToolFormat::kHermes || options_.format == ToolFormat::kLlama3) {
    FailAt(c);
  } else if (c == '[') {
    in_list_ = true;
    state_ = State::kItem;
  } else {
    state_ = State::kToolName;
    name_ = c;
  }
}

void ToolParser::TakeClose(char c) {
  if (IsLeadingBlank(c)) return;
  const std::string_view body = std::string_view(held_).substr(num_blanks_);
  if (body == kHermesEnd) {
    Release();
  } else if (!kHermesEnd.starts_with(body)) {
    const std::string again = std::exchange(held_, "");
    Release();
    for (const char each : again) Take(each);
  }
}

// Whether `c`, the last character of held_, is one of the blanks at its beginning; counts them.
bool ToolParser::IsLeadingBlank(char c) {
  const bool separator = c == ';' && options_.format == ToolFormat::kLlama3 && after_call_;
  if (held_.size() != num_blanks_ + 1 || !(IsBlank(c) || separator)) return false;
  ++num_blanks_;
  return true;
}

// Drops the text that is held back; other text follows.
void ToolParser::Release() {
  held_.clear();
  num_blanks_ = 0;
  state_ = State::kText;
}

// Whether a call may begin with `body`, text without blanks before it.
bool ToolParser::MayBegin(std::string_view body, bool* complete) const {
  std::string_view marker = kMistralBegin;
  if (options_.format == ToolFormat::kHermes) marker = kHermesBegin;
  if (options_.format == ToolFormat::kLlama3) marker = body.starts_with('{') ? "{" : kLlama3Begin;
  *complete = body == marker;
  if (options_.format == ToolFormat::kLlama3 && !at_start_) return body.empty();
  return marker.starts_with(body);
}

void ToolParser::TakeText(char c) {
  held_ += c;
  if (IsLeadingBlank(c)) return;
  bool complete;
  while (!MayBegin(std::string_view(held_).substr(num_blanks_), &complete)) {
    at_start_ = after_call_ = false;
    result_.content.append(held_, 0, num_blanks_ + 1);
    held_.erase(0, num_blanks_ + 1);
    num_blanks_ = std::min(held_.size(), held_.find_first_not_of(kBlanks));
  }
  if (!complete) return;
  in_list_ = by_name_ = false;
  state_ = held_.ends_with('{') ? State::kFirstKey : State::kBegin;
}

void ToolParser::BeginValue(char c) {
  value_.clear();
  scanner_.Begin();
  const bool arguments = key_ == "arguments" || key_ == "parameters";
  if ((arguments && (c != '{' || has_arguments_)) || (key_ == "name" && (c != '"' || has_name_))) return FailAt(c);
  if (arguments) key_ = "arguments";
  if (!arguments && key_ != "name" && key_ != "type" && key_ != "id") has_others_ = true;
  state_ = State::kInValue;
  if (arguments && has_name_) BeginCall();
  TakeValue(c);
}

void ToolParser::TakeValue(char c) {
  const auto found = scanner_.Take(c);
  if (found == ValueScanner::Found::kError) return FailAt(c);
  if (found == ValueScanner::Found::kEndBefore) {
    held_.pop_back();
    state_ = State::kAfterValue;
    return Take(c);
  }
  const bool arguments = key_ == "arguments";
  if (arguments) {
    AddArguments(std::string_view(&c, 1));
  } else {
    value_ += c;
  }
  if (found == ValueScanner::Found::kMore) return;
  state_ = State::kAfterValue;
  if (arguments) {
    has_arguments_ = true;
    if (!base::ParseJson(arguments_).ok()) return Fail();
    if (by_name_) return EndCall();
  } else if (key_ == "name") {
    has_name_ = true;
    name_ = Unquoted(value_);
    if (std::find(options_.names.begin(), options_.names.end(), name_) == options_.names.end()) return Fail();
    if (has_arguments_) BeginCall();
  }
}

// [TOOL_CALLS]name[ARGS]{...}, [TOOL_CALLS]name[CALL_ID]id[ARGS]{...} or [TOOL_CALLS]name{...}
void ToolParser::TakeName(char c) {
  const auto begin_arguments = [this] {
    while (!name_.empty() && IsBlank(name_.back())) name_.pop_back();
    if (std::find(options_.names.begin(), options_.names.end(), name_) == options_.names.end()) return false;
    has_name_ = true;
    key_ = "arguments";
    by_name_ = true;
    state_ = State::kValue;
    return true;
  };
  switch (state_) {
    case State::kToolName:
      if (c == '{') {
        if (!begin_arguments()) return FailAt(c);
        return BeginValue(c);
      }
      if (c == '[') {
        state_ = State::kToolMarker;
        marker_ = c;
      } else {
        name_ += c;
      }
      return;
    case State::kToolMarker:
      marker_ += c;
      if (marker_ == kMistralId) {
        state_ = State::kCallId;
        marker_.clear();
      } else if (marker_ == kMistralArguments) {
        if (!begin_arguments()) Fail();
      } else if (!kMistralId.starts_with(marker_) && !kMistralArguments.starts_with(marker_)) {
        FailAt(c);
      }
      return;
    default:
      if (c == '[' || !marker_.empty()) marker_ += c;
      if (marker_ == kMistralArguments) {
        if (!begin_arguments()) Fail();
      } else if (!kMistralArguments.starts_with(marker_)) {
        FailAt(c);
      }
  }
}

ToolParser::CallPart& ToolParser::Part() {
  if (result_.calls.empty() || result_.calls.back().index != next_index_) {
    result_.calls.emplace_back().index = next_index_;
  }
  return result_.calls.back();
}

void ToolParser::BeginCall() {
  begun_ = true;
  if (!shown()) return;
  Part().name = name_;
  Part().arguments += arguments_;
}

void ToolParser::AddArguments(std::string_view piece) {
  arguments_ += piece;
  if (begun_ && shown()) Part().arguments += piece;
}

void ToolParser::EndObject() {
  if (!has_name_) return Fail();
  if (!has_arguments_) {  // a tool without parameters
    if (has_others_) return Fail();
    BeginCall();
    AddArguments("{}");
  }
  EndCall();
}

void ToolParser::EndCall() {
  if (shown()) {
    ++num_calls_;
    ++next_index_;
  }
  Release();
  after_call_ = true;
  ForgetCall();
  state_ = in_list_ ? State::kAfterItem : options_.format == ToolFormat::kHermes ? State::kClose : State::kText;
}

void ToolParser::ForgetCall() {
  begun_ = has_name_ = has_arguments_ = has_others_ = false;
  name_.clear();
  arguments_.clear();
  marker_.clear();
}

void ToolParser::Fail() {
  if (begun_ && shown()) {
    Part().malformed = true;
    ++next_index_;
  }
  ForgetCall();
  result_.content += held_;
  at_start_ = after_call_ = false;
  Release();
}

void ToolParser::FailAt(char c) {
  held_.pop_back();
  Fail();
  TakeText(c);
}

}  // namespace nibble::text
