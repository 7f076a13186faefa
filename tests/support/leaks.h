// Finds what a response must not reveal to its client (docs/faults.md, S7), and visits every text of a response.
#pragma once
#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::testing_support {

namespace internal {

inline bool IsAlnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }
inline bool IsOfAName(char c) { return IsAlnum(c) || c == '.' || c == '_' || c == '-'; }

// Finds the start of a path, "/var/l" of "/var/lib": two parts, at the beginning of a word, or anywhere if the first
// part is one of kFolders.
inline std::string_view PathAt(std::string_view text, std::size_t at) {
  constexpr std::string_view kBefore = " \t\r\n\"'`,;:()<>[]{}|=";
  constexpr std::string_view kFolders[] = {"tmp", "root", "home", "var", "usr", "proc", "dev", "etc", "work", "state"};
  if (text[at] != '/') return {};
  std::size_t end = at + 1;
  while (end < text.size() && IsOfAName(text[end])) ++end;
  const std::string_view folder = text.substr(at + 1, end - at - 1);
  if (folder.empty() || end + 1 >= text.size() || text[end] != '/' || !IsOfAName(text[end + 1])) return {};
  const bool begins = at == 0 || kBefore.find(text[at - 1]) != std::string_view::npos;
  if (!begins && std::find(std::begin(kFolders), std::end(kFolders), folder) == std::end(kFolders)) return {};
  return text.substr(at, end + 2 - at);
}

// Finds an address: "0x7ffd12345678".
inline std::string_view AddressAt(std::string_view text, std::size_t at) {
  if (text.substr(at, 2) != "0x") return {};
  const std::size_t end = std::min(text.find_first_not_of("0123456789abcdefABCDEF", at + 2), text.size());
  return end - at >= 8 ? text.substr(at, end - at) : std::string_view();
}

// Finds a source location: "p.cc" of "app.cc:12".
inline std::string_view SourceAt(std::string_view text, std::size_t at) {
  if (text[at] != '.' || at == 0 || !(IsAlnum(text[at - 1]) || text[at - 1] == '_')) return {};
  for (const std::string_view kind : {".cc:", ".cpp:", ".h:", ".rs:", ".py:", ".so:"}) {
    const std::size_t end = at + kind.size();
    if (text.substr(at, kind.size()) == kind && end < text.size() &&
        std::isdigit(static_cast<unsigned char>(text[end])) != 0) {
      return text.substr(at - 1, kind.size());
    }
  }
  return {};
}

inline std::string_view WordsAt(std::string_view text, std::size_t at) {
  for (const std::string_view words :
       {"sqlite", "Sqlite", "SQLite", "SQLITE", "INSERT INTO ", "DELETE FROM ", "no such table", "no such column",
        "syntax error near", "constraint failed", "basic_string", "json.exception", "panicked at", "stack backtrace",
        "RUST_BACKTRACE", "terminate called", "Traceback (most recent"}) {
    if (text.substr(at, words.size()) == words) return text.substr(at, words.size());
  }
  constexpr std::string_view kStd = "std::", kSelect = "SELECT ";
  const std::string_view rest = text.substr(at);
  if (rest.substr(0, kStd.size()) == kStd && rest.size() > kStd.size() &&
      (IsAlnum(rest[kStd.size()]) || rest[kStd.size()] == '_')) {
    return rest.substr(0, kStd.size() + 1);
  }
  if (rest.substr(0, kSelect.size()) == kSelect && rest.find(" FROM ") != std::string_view::npos)
    return rest.substr(0, kSelect.size());
  return {};
}

}  // namespace internal

// Returns the parts of `text` that reveal the server's internals: a path on its disk, a memory address, SQL, a source
// location, or messages of its libraries. Returns enough of each leak to recognize it.
inline std::vector<std::string_view> FindLeaks(std::string_view text) {
  std::vector<std::string_view> leaks;
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (const auto find : {internal::PathAt, internal::AddressAt, internal::SourceAt, internal::WordsAt}) {
      if (const std::string_view leak = find(text, at); !leak.empty()) leaks.push_back(leak);
    }
  }
  return leaks;
}

// Calls visit(text) for every string of the message and its nested messages, including the message that an Any holds.
template <typename Visit>
void ForEachText(const google::protobuf::Message& message, const Visit& visit) {
  using google::protobuf::FieldDescriptor;
  if (const auto* any = dynamic_cast<const google::protobuf::Any*>(&message)) {
    const std::string& url = any->type_url();
    const auto* type =
        google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(url.substr(url.rfind('/') + 1));
    const auto* prototype =
        type == nullptr ? nullptr : google::protobuf::MessageFactory::generated_factory()->GetPrototype(type);
    const std::unique_ptr<google::protobuf::Message> held(prototype == nullptr ? nullptr : prototype->New());
    if (held != nullptr && any->UnpackTo(held.get())) return ForEachText(*held, visit);
    visit(url);
    return visit(any->value());
  }
  const auto* reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool repeated = field->is_repeated();
    for (int i = 0; i < (repeated ? reflection->FieldSize(message, field) : 1); ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        visit(repeated ? reflection->GetRepeatedString(message, field, i) : reflection->GetString(message, field));
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        ForEachText(
            repeated ? reflection->GetRepeatedMessage(message, field, i) : reflection->GetMessage(message, field),
            visit);
      }
    }
  }
}

}  // namespace nibble::testing_support
