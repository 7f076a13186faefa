#include "server/openai/multipart.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"

namespace nibble::openai {

namespace {

using base::StrCat;

constexpr std::size_t kMaxBoundaryBytes = 70;  // RFC 2046
constexpr std::size_t kMaxPaddingBytes = 64;   // blanks after a boundary
constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kHeaderEnd = "\r\n\r\n";

absl::Status Malformed(std::string_view what) { return base::FieldError("body", StrCat("malformed form: ", what)); }

std::string_view Trimmed(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::string Lower(std::string_view text) { return absl::AsciiStrToLower(base::ToAbsl(text)); }

// A value such as `form-data; name="file"`.
struct Value {
  std::string main;                               // in lower case
  std::map<std::string, std::string> parameters;  // names in lower case
};

// The text of a quoted string, whose first quote has been removed, and removes it from `rest`. nullopt: it does not
// end. A backslash escapes only a quote and itself: browsers send paths with single backslashes.
std::optional<std::string> Quoted(std::string_view& rest) {
  std::string out;
  while (!rest.empty()) {
    const char c = rest.front();
    rest.remove_prefix(1);
    if (c == '"') return out;
    if (c == '\\' && !rest.empty() && (rest.front() == '"' || rest.front() == '\\')) {
      out += rest.front();
      rest.remove_prefix(1);
    } else {
      out += c;
    }
  }
  return std::nullopt;
}

// nullopt: malformed, or a parameter is given twice.
std::optional<Value> ParseValue(std::string_view text) {
  Value value;
  const std::size_t end = std::min(text.find(';'), text.size());
  value.main = Lower(Trimmed(text.substr(0, end)));
  std::string_view rest = text.substr(end);
  while (!(rest = Trimmed(rest)).empty()) {
    if (rest.front() != ';') return std::nullopt;
    rest = Trimmed(rest.substr(1));
    if (rest.empty()) break;
    const std::size_t equals = rest.find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    const std::string name = Lower(Trimmed(rest.substr(0, equals)));
    rest = Trimmed(rest.substr(equals + 1));
    std::optional<std::string> given;
    if (rest.starts_with('"')) {
      rest.remove_prefix(1);
      given = Quoted(rest);
      if (!given.has_value()) return std::nullopt;
    } else {
      const std::size_t token_end = std::min(rest.find(';'), rest.size());
      given = Trimmed(rest.substr(0, token_end));
      rest.remove_prefix(token_end);
    }
    if (!value.parameters.emplace(name, *std::move(given)).second) return std::nullopt;
  }
  return value;
}

// Decodes the bytes for which `wanted` is true from %XX.
template <typename Wanted>
std::string PercentDecoded(std::string_view text, Wanted wanted) {
  const auto is_digit = [&](std::size_t i) {
    return i < text.size() && absl::ascii_isxdigit(static_cast<unsigned char>(text[i]));
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && is_digit(i + 1) && is_digit(i + 2)) {
      const std::string byte = absl::HexStringToBytes(base::ToAbsl(text.substr(i + 1, 2)));
      if (wanted(byte.front())) {
        out += byte;
        i += 2;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

// The three bytes that browsers and Python's httpx encode in a name (HTML, "multipart form data").
std::string FormText(std::string_view text) {
  return PercentDecoded(text, [](char c) { return c == '"' || c == '\r' || c == '\n'; });
}

// filename*=UTF-8''... (RFC 8187), or filename="...".
absl::StatusOr<std::optional<std::string>> FileNameOf(const Value& value) {
  if (const auto extended = value.parameters.find("filename*"); extended != value.parameters.end()) {
    const std::string_view text = extended->second;
    const std::size_t first = text.find('\'');
    const std::size_t second = first == std::string_view::npos ? first : text.find('\'', first + 1);
    if (second == std::string_view::npos || Lower(text.substr(0, first)) != "utf-8")
      return Malformed("filename* is not of the form UTF-8''NAME");
    return PercentDecoded(text.substr(second + 1), [](char) { return true; });
  }
  const auto plain = value.parameters.find("filename");
  if (plain == value.parameters.end()) return std::optional<std::string>();
  return FormText(plain->second);
}

absl::StatusOr<FormPart> ParseHeader(std::string_view header) {
  std::optional<Value> disposition;
  while (!header.empty()) {
    const std::string_view line = header.substr(0, header.find(kLineEnd));
    header.remove_prefix(std::min(header.size(), line.size() + kLineEnd.size()));
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return Malformed("a header field of a part has no colon");
    if (Lower(line.substr(0, colon)) != "content-disposition") continue;
    if (disposition.has_value()) return Malformed("a part has two fields Content-Disposition");
    disposition = ParseValue(line.substr(colon + 1));
    if (!disposition.has_value()) return Malformed("the Content-Disposition of a part cannot be parsed");
  }
  if (!disposition.has_value() || disposition->main != "form-data")
    return Malformed("a part has no field \"Content-Disposition: form-data\"");
  const auto name = disposition->parameters.find("name");
  if (name == disposition->parameters.end()) return Malformed("a part has no name");
  FormPart part;
  part.name = FormText(name->second);
  NIBBLE_ASSIGN_OR_RETURN(part.file_name, FileNameOf(*disposition));
  if (!base::IsValidUtf8(part.name) || !base::IsValidUtf8(part.file_name.value_or("")))
    return Malformed("the name of a part or file is not UTF-8");
  return part;
}

}  // namespace

absl::StatusOr<FormParser> FormParser::Make(std::string_view content_type, FormLimits limits, FormSink& sink) {
  const std::optional<Value> value = ParseValue(content_type);
  if (!value.has_value() || value->main != "multipart/form-data")
    return base::FieldError("Content-Type", StrCat("is \"", content_type, "\", wanted multipart/form-data"));
  const auto boundary = value->parameters.find("boundary");
  const std::size_t size = boundary == value->parameters.end() ? 0 : boundary->second.size();
  if (size < 1 || size > kMaxBoundaryBytes || boundary->second.find_first_of(kLineEnd) != std::string::npos) {
    return base::FieldError("Content-Type",
                            StrCat("has a boundary of ", size, " bytes, wanted 1 to ", kMaxBoundaryBytes));
  }
  return FormParser(StrCat(kLineEnd, "--", boundary->second), limits, sink);
}

absl::Status FormParser::Feed(std::string_view bytes) {
  if (state_ == State::kEpilogue) return absl::OkStatus();
  kept_ += bytes;
  std::string_view rest = kept_;
  bool more = true;
  while (more) {
    NIBBLE_ASSIGN_OR_RETURN(more, Step(rest));
  }
  kept_.erase(0, kept_.size() - rest.size());
  return absl::OkStatus();
}

absl::Status FormParser::Finish() const {
  return state_ == State::kEpilogue ? absl::OkStatus() : Malformed("the body ends before the last boundary");
}

absl::StatusOr<bool> FormParser::Step(std::string_view& rest) {
  switch (state_) {
    case State::kPreamble:
    case State::kBytes: return TakeBytes(rest);
    case State::kBoundary: return TakeBoundary(rest);
    case State::kHeader: return TakeHeader(rest);
    case State::kEpilogue: break;
  }
  rest = {};
  return false;
}

absl::StatusOr<bool> FormParser::TakeBytes(std::string_view& rest) {
  const std::size_t found = rest.find(delimiter_);
  const bool whole = found != std::string_view::npos;
  // Without a delimiter, the last bytes may be the beginning of one.
  const std::size_t size = whole ? found : rest.size() - std::min(rest.size(), delimiter_.size() - 1);
  const std::string_view bytes = rest.substr(0, size);
  rest.remove_prefix(size + (whole ? delimiter_.size() : 0));
  if (state_ == State::kBytes) {
    if (!bytes.empty()) NIBBLE_RETURN_IF_ERROR(sink_->PartBytes(bytes));
    if (whole) NIBBLE_RETURN_IF_ERROR(sink_->EndPart());
  } else {
    preamble_bytes_ += size;
    if (preamble_bytes_ > limits_.max_preamble_bytes)
      return Malformed(StrCat("no boundary in the first ", limits_.max_preamble_bytes, " bytes"));
  }
  if (whole) state_ = State::kBoundary;
  return whole;
}

absl::StatusOr<bool> FormParser::TakeBoundary(std::string_view& rest) {
  if (rest.size() < 2) return false;
  if (rest.starts_with("--")) {
    state_ = State::kEpilogue;
    return true;
  }
  const std::size_t end = rest.find(kLineEnd);
  const std::string_view padding = rest.substr(0, end);
  const bool blank = Trimmed(padding).empty() || (end == std::string_view::npos && Trimmed(padding) == "\r");
  if (!blank || padding.size() > kMaxPaddingBytes) return Malformed("other text follows a boundary");
  if (end == std::string_view::npos) return false;
  if (++num_parts_ > limits_.max_parts) return Malformed(StrCat("more than ", limits_.max_parts, " parts"));
  // The line end stays: it is also that of an empty header.
  rest.remove_prefix(end);
  state_ = State::kHeader;
  return true;
}

absl::StatusOr<bool> FormParser::TakeHeader(std::string_view& rest) {
  const std::size_t end = rest.find(kHeaderEnd);
  const std::size_t size = std::min(end, rest.size());
  if (size > limits_.max_part_header_bytes) {
    return Malformed(StrCat("the header of a part has more than ", limits_.max_part_header_bytes, " bytes"));
  }
  if (end == std::string_view::npos) return false;
  const std::size_t begin = std::min(kLineEnd.size(), end);
  NIBBLE_ASSIGN_OR_RETURN(const FormPart part, ParseHeader(rest.substr(begin, end - begin)));
  NIBBLE_RETURN_IF_ERROR(sink_->BeginPart(part));
  rest.remove_prefix(end + kHeaderEnd.size());
  state_ = State::kBytes;
  return true;
}

}  // namespace nibble::openai
