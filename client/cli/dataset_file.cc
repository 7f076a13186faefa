#include "client/cli/dataset_file.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/ids.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"

namespace nibble::cli {
namespace {

// Number of bytes that are searched for a JSON row, to distinguish a damaged file of rows from a plain text.
constexpr std::size_t kSearchedBytes = std::size_t{64} << 10;

using base::Json;
using base::StrCat;
using Emit = std::function<absl::Status(const Json& row)>;

constexpr std::string_view kBlanks = " \t\r\n";

absl::Status Bad(std::string_view what) {
  return base::WithReason(absl::InvalidArgumentError(std::string(what)), "DATASET_FORMAT");
}

std::size_t SkipBlanks(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of(kBlanks, at), text.size());
}

// The end of the JSON object that begins at `at`. Does not check the object's content.
std::size_t EndOfObject(std::string_view text, std::size_t at) {
  int depth = 0;
  bool in_string = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') {
        ++at;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return at + 1;
    }
  }
  return text.size();
}

// Counts the lines of a text from its beginning.
class LineCounter {
 public:
  explicit LineCounter(std::string_view text) : text_(text) {}
  // The line, from 1, that contains `offset`. The offsets of successive calls must not decrease.
  std::int64_t At(std::size_t offset) {
    const std::string_view passed = text_.substr(at_, offset - at_);
    line_ += std::count(passed.begin(), passed.end(), '\n');
    at_ = offset;
    return line_;
  }

 private:
  const std::string_view text_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;
};

bool IsArray(std::string_view text) {
  const std::size_t at = SkipBlanks(text, 0);
  return at < text.size() && text[at] == '[';
}

// Calls `emit` for each object of a JSON array, or of JSON lines, and adds its place.
absl::Status ForEachObject(std::string_view text, RowPlaces& places, const Emit& emit) {
  std::size_t at = SkipBlanks(text, 0);
  const bool is_array = IsArray(text);
  if (is_array) at = SkipBlanks(text, at + 1);
  LineCounter lines(text);
  for (std::int64_t row = 1; at < text.size() && text[at] != ']'; ++row) {
    const std::int64_t place = is_array ? row : lines.At(at);
    if (text[at] != '{') return places.Bad(place, "not a JSON object");
    const std::size_t end = EndOfObject(text, at);
    const auto json = base::ParseJson(text.substr(at, end - at));
    const absl::Status emitted = json.ok() ? emit(*json) : json.status();
    if (!emitted.ok()) return places.Bad(place, base::ToStd(emitted.message()));
    places.Add(place);
    at = SkipBlanks(text, end);
    if (!is_array) continue;
    if (at < text.size() && text[at] == ',') {
      at = SkipBlanks(text, at + 1);
      if (at == text.size() || text[at] == ']') return places.Bad(place, "a comma follows, but no further element");
    } else if (at < text.size() && text[at] != ']') {
      return places.Bad(place, "no comma follows");
    }
  }
  if (!is_array) return at == text.size() ? absl::OkStatus() : places.Bad(lines.At(at), "a \"]\" without \"[\"");
  if (at == text.size()) return Bad("the array has no end");
  return SkipBlanks(text, at + 1) == text.size() ? absl::OkStatus() : Bad("there is text after the array");
}

// Reads one record of a CSV file (RFC 4180) and moves `at` to the next one.
absl::StatusOr<std::vector<std::string>> NextRecord(std::string_view text, std::size_t& at) {
  std::vector<std::string> fields(1);
  while (at < text.size()) {
    if (text[at] == '"' && fields.back().empty()) {
      for (++at;; ++at) {  // to the closing quote; two quotes in a row stand for one
        if (at == text.size()) return absl::InvalidArgumentError("a quote has no end");
        if (text[at] == '"' && (++at == text.size() || text[at] != '"')) break;
        fields.back() += text[at];
      }
      if (at < text.size() && text[at] != ',' && text[at] != '\n' && text[at] != '\r') {
        return absl::InvalidArgumentError("there is text after a quoted field");
      }
    } else if (text[at] == ',') {
      fields.emplace_back();
      ++at;
    } else if (text[at] == '\n' || text.substr(at, 2) == "\r\n") {
      at += text[at] == '\n' ? 1 : 2;
      return fields;
    } else {
      fields.back() += text[at++];
    }
  }
  return fields;
}

absl::StatusOr<std::string> TextOf(const Json& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end()) return absl::InvalidArgumentError(StrCat("no \"", key, "\""));
  if (!it->is_string()) return absl::InvalidArgumentError(StrCat("\"", key, "\" is not a string"));
  return it->get<std::string>();
}

Json Message(const std::string& role, const std::string& content) {
  Json message = Json::object();
  message["role"] = role;
  message["content"] = content;
  return message;
}

Json Chat(std::vector<Json> messages) {
  Json row = Json::object();
  row["messages"] = Json(std::move(messages));
  return row;
}

absl::StatusOr<Json> FromAlpaca(const Json& json) {
  std::vector<Json> messages;
  if (json.contains("system")) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string system, TextOf(json, "system"));
    if (!system.empty()) messages.push_back(Message("system", system));
  }
  NIBBLE_ASSIGN_OR_RETURN(std::string instruction, TextOf(json, "instruction"));
  if (json.contains("input")) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string input, TextOf(json, "input"));
    if (!input.empty()) instruction += "\n\n" + input;
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string output, TextOf(json, "output"));
  messages.push_back(Message("user", instruction));
  messages.push_back(Message("assistant", output));
  return Chat(std::move(messages));
}

absl::StatusOr<std::string> RoleOf(const std::string& from) {
  if (from == "human" || from == "user") return std::string("user");
  if (from == "gpt" || from == "assistant" || from == "chatgpt" || from == "model") return std::string("assistant");
  if (from == "system" || from == "tool") return from;
  return absl::InvalidArgumentError(StrCat("\"from\" is \"", from, "\", wanted human, gpt, system or tool"));
}

absl::StatusOr<Json> FromShareGpt(const Json& json) {
  const auto turns = json.find("conversations");
  if (turns == json.end()) return absl::InvalidArgumentError("no \"conversations\"");
  if (!turns->is_array()) return absl::InvalidArgumentError("\"conversations\" is not a list");
  std::vector<Json> messages;
  for (const Json& turn : *turns) {
    if (!turn.is_object()) return absl::InvalidArgumentError("a turn of \"conversations\" is not an object");
    NIBBLE_ASSIGN_OR_RETURN(const std::string from, TextOf(turn, "from"));
    NIBBLE_ASSIGN_OR_RETURN(const std::string role, RoleOf(from));
    NIBBLE_ASSIGN_OR_RETURN(const std::string value, TextOf(turn, "value"));
    messages.push_back(Message(role, value));
  }
  return Chat(std::move(messages));
}

// The columns of a CSV file that become a row.
struct CsvColumns {
  std::vector<std::string> names;  // of all columns
  std::vector<std::string> kept;
  bool is_alpaca = false;
};

absl::StatusOr<CsvColumns> ColumnsOf(std::vector<std::string> names) {
  const auto has = [&](const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  const bool is_alpaca = has("instruction") && has("output");
  if (!is_alpaca && !has("text") && !(has("prompt") && has("completion"))) {
    return absl::InvalidArgumentError(StrCat("the columns are ", absl::StrJoin(names, ", "),
                                             "; wanted text, or prompt and completion, or instruction and output"));
  }
  std::vector<std::string> kept = {"prompt", "completion"};
  if (is_alpaca) {
    kept = {"system", "instruction", "input", "output"};
  } else if (has("text")) {
    kept = {"text"};
  }
  return CsvColumns{.names = std::move(names), .kept = std::move(kept), .is_alpaca = is_alpaca};
}

absl::StatusOr<Json> FromRecord(const std::vector<std::string>& fields, const CsvColumns& columns) {
  if (fields.size() != columns.names.size()) {
    return absl::InvalidArgumentError(
        StrCat("has ", fields.size(), " fields, wanted ", columns.names.size(), " as in the first line"));
  }
  Json json = Json::object();
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const std::string& name = columns.names[i];
    if (std::find(columns.kept.begin(), columns.kept.end(), name) == columns.kept.end()) continue;
    // base::Dump would replace bytes that are not UTF-8.
    if (!base::IsValidUtf8(fields[i])) return absl::InvalidArgumentError("is not UTF-8: save the file as UTF-8");
    json[name] = fields[i];
  }
  if (columns.is_alpaca) return FromAlpaca(json);
  return json;
}

absl::Status ConvertCsv(std::string_view text, RowPlaces& places, const Emit& emit) {
  if (text.substr(0, 2) == "\xFF\xFE" || text.substr(0, 2) == "\xFE\xFF") {
    return Bad("the file is UTF-16, wanted UTF-8");
  }
  std::size_t at = text.substr(0, 3) == "\xEF\xBB\xBF" ? 3 : 0;  // a byte order mark, which spreadsheets write
  auto names = NextRecord(text, at);
  if (!names.ok()) return places.Bad(1, base::ToStd(names.status().message()));
  const auto columns = ColumnsOf(*std::move(names));
  if (!columns.ok()) return Bad(base::ToStd(columns.status().message()));
  LineCounter lines(text);
  while (SkipBlanks(text, at) < text.size()) {
    const std::int64_t line = lines.At(at);  // where the record begins: a field in quotes may have several lines
    const auto fields = NextRecord(text, at);
    if (!fields.ok()) return places.Bad(line, base::ToStd(fields.status().message()));
    if (fields->size() == 1 && fields->front().empty()) continue;  // an empty line
    const auto row = FromRecord(*fields, *columns);
    const absl::Status emitted = row.ok() ? emit(*row) : row.status();
    if (!emitted.ok()) return places.Bad(line, base::ToStd(emitted.message()));
    places.Add(line);
  }
  return absl::OkStatus();
}

absl::Status Convert(std::string_view text, const std::string& format, RowPlaces& places, const Emit& emit) {
  if (format == "csv") return ConvertCsv(text, places, emit);
  if (format == "json") return ForEachObject(text, places, emit);
  const auto convert = format == "alpaca" ? &FromAlpaca : &FromShareGpt;
  return ForEachObject(text, places, [&](const Json& json) -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(const Json row, convert(json));
    return emit(row);
  });
}

absl::StatusOr<std::shared_ptr<const base::MappedFile>> Map(const std::string& path) {
  auto file = base::MappedFile::Open(path);
  if (file.ok()) return file;
  return base::WithReason(absl::NotFoundError(StrCat("cannot read ", path, ": ", base::ToStd(file.status().message()))),
                          "FILE");
}

}  // namespace

ConvertedFile::~ConvertedFile() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove(path_, ignored);
}

bool IsForeignFormat(const std::string& format) {
  return format == "json" || format == "csv" || format == "alpaca" || format == "sharegpt";
}

absl::StatusOr<ConvertedFile> ToJsonLines(const std::string& path, const std::string& format) {
  NIBBLE_ASSIGN_OR_RETURN(const auto source, Map(path));
  std::error_code error;
  const std::filesystem::path directory = std::filesystem::temp_directory_path(error);
  const std::string to = (error ? std::filesystem::path(".") : directory) / base::NewId("nibble-rows");
  ConvertedFile made(to, RowPlaces(path, format != "csv" && IsArray(source->text())));
  std::ofstream out(to, std::ios::binary);
  NIBBLE_RETURN_IF_ERROR(Convert(source->text(), format, made.places(), [&out](const Json& row) {
    out << base::Dump(row) << '\n';
    return absl::OkStatus();
  }));
  out.close();
  if (!out)
    return base::WithReason(absl::ResourceExhaustedError(StrCat("cannot write the converted rows to ", made.path())),
                            "FILE");
  return made;
}

absl::Status CheckIsJsonLines(const std::string& path) {
  const auto source = Map(path);
  if (!source.ok()) return absl::OkStatus();  // the upload reports the error
  const std::string_view text = (*source)->text();
  const std::size_t at = SkipBlanks(text, 0);
  if (at == text.size()) return absl::OkStatus();
  if (text[at] == '[') return Bad(StrCat(path, " is a JSON array: give --format json, alpaca or sharegpt"));
  const std::string_view line = text.substr(at, text.find('\n', at) - at);
  if (text[at] != '{') {
    if (path.ends_with(".csv")) return Bad(StrCat(path, " is a CSV file: give --format csv"));
    if (text.substr(0, kSearchedBytes).find("\n{") != std::string_view::npos)
      return absl::OkStatus();  // the server reports the damaged line
    return Bad(StrCat(path, " has no JSON at its beginning: if it is one plain text, give --format text"));
  }
  const auto json = base::ParseJson(line);
  if (!json.ok() || !json->is_object()) return absl::OkStatus();  // the server reports the damaged line
  if (json->contains("conversations")) return Bad(StrCat(path, " has ShareGPT rows: give --format sharegpt"));
  if (json->contains("instruction") && json->contains("output"))
    return Bad(StrCat(path, " has Alpaca rows: give --format alpaca"));
  return absl::OkStatus();
}

}  // namespace nibble::cli
