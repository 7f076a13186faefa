#include "server/base/json.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/base/json_file.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"

namespace nibble::base {
namespace {

constexpr std::size_t kMaxShownKey = 100;  // bytes
constexpr std::size_t kFewKeys = 16;       // a set becomes faster at about this size

// Builds the value and rejects unbounded nesting and duplicate keys, which nlohmann accepts.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(int max_depth) : max_depth_(max_depth) {}
  Json root;
  std::string error;
  std::optional<std::size_t> malformed_at;  // offset of the first wrong byte; the size of a text that ends too early

  bool null() override { return Put(nullptr); }
  bool boolean(bool v) override { return Put(v); }
  bool number_integer(number_integer_t v) override { return Put(v); }
  bool number_unsigned(number_unsigned_t v) override { return Put(v); }
  bool number_float(number_float_t v, const string_t&) override { return Put(v); }
  bool string(string_t& v) override { return Put(std::move(v)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(); }
  bool end_object() override {
    std::vector<Member>& members = open_.back().members;
    Json::object_t object;
    object.reserve(members.size());
    // Not operator[]: its lookup takes linear time in an ordered object, and IsNew has already checked the key.
    for (Member& member : members) object.Container::emplace_back(std::move(member.first), std::move(member.second));
    return Close(std::move(object));
  }
  bool start_array(std::size_t) override { return Open(); }
  bool end_array() override {
    Json::array_t array = std::move(open_.back().items);
    array.shrink_to_fit();
    return Close(std::move(array));
  }
  bool key(string_t& k) override {
    if (!IsNew(k)) {
      const std::size_t shown = WholeCharacters(k, std::min(k.size(), kMaxShownKey));
      error = StrCat("duplicate key \"", k.substr(0, shown), shown < k.size() ? "..." : "", "\"");
      return false;
    }
    std::vector<Member>& members = open_.back().members;
    if (members.empty()) members.reserve(kFewKeys);
    members.emplace_back(std::move(k), nullptr);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    malformed_at = position > 0 ? position - 1 : 0;  // nlohmann counts the bytes that it has read
    error = StrCat("malformed JSON at byte ", position);
    return false;
  }

 private:
  using Member = std::pair<std::string, Json>;
  // A container whose end is not read yet. An object of nlohmann has constant keys, so when it grows it copies all its
  // values; members are collected here and moved once, when their number is known.
  struct Unfinished {
    std::vector<Member> members;  // of an object; a key is added before its value is read
    Json::array_t items;          // of an array
    std::set<std::string> keys;   // filled once an object has kFewKeys members
  };

  // Linear search in a small object; a larger object has a set of its keys.
  bool IsNew(const std::string& key) {
    const std::vector<Member>& members = open_.back().members;
    if (members.size() < kFewKeys) {
      return std::none_of(members.begin(), members.end(), [&key](const Member& member) { return member.first == key; });
    }
    std::set<std::string>& keys = open_.back().keys;
    if (keys.empty()) {
      for (const Member& member : members) keys.insert(member.first);
    }
    return keys.insert(key).second;
  }
  bool Put(Json value) {
    if (open_.empty()) {
      root = std::move(value);
    } else if (std::vector<Member>& members = open_.back().members; !members.empty()) {
      members.back().second = std::move(value);
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }
  bool Open() {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      error = StrCat("nested deeper than ", max_depth_);
      return false;
    }
    open_.emplace_back();
    return true;
  }
  bool Close(Json value) {
    open_.pop_back();
    return Put(std::move(value));
  }

  int max_depth_;
  std::vector<Unfinished> open_;
};

// False if the text is refused: builder.error says why.
bool Build(std::string_view text, Builder& builder) {
  // nlohmann treats a NUL as the end of the input and would ignore the rest.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    builder.malformed_at = nul;
    builder.error = StrCat("malformed JSON at byte ", nul + 1);
    return false;
  }
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return true;
  if (builder.error.empty()) builder.error = "malformed JSON";
  if (builder.malformed_at.has_value() && !IsValidUtf8(text)) {
    builder.malformed_at.reset();
    builder.error = "not UTF-8, wanted JSON in UTF-8";
  }
  return false;
}

template <typename T, typename Check, typename Read>
absl::StatusOr<T> Get(const Json& object, std::string_view key, std::string_view where, const char* wanted, Check check,
                      Read read, const T* absent) {
  const auto it = object.is_object() ? object.find(std::string(key)) : object.end();
  if (it == object.end() || it->is_null()) {
    if (absent != nullptr) return *absent;
    return absl::InvalidArgumentError(StrCat(where, ": no \"", key, "\", wanted ", wanted));
  }
  if (!check(*it)) {
    return absl::InvalidArgumentError(
        StrCat(where, ": \"", key, "\" is ", Dump(*it).substr(0, 64), ", wanted ", wanted));
  }
  return read(*it);
}

absl::StatusOr<std::int64_t> ReadInt(const Json& o, std::string_view k, std::string_view w,
                                     const std::int64_t* absent) {
  return Get<std::int64_t>(
      o, k, w, "an integer",
      [](const Json& v) {
        return v.is_number_integer() && (!v.is_number_unsigned() || v.get<std::uint64_t>() <= INT64_MAX);
      },
      [](const Json& v) { return v.get<std::int64_t>(); }, absent);
}
absl::StatusOr<double> ReadNumber(const Json& o, std::string_view k, std::string_view w, const double* absent) {
  return Get<double>(
      o, k, w, "a number", [](const Json& v) { return v.is_number(); }, [](const Json& v) { return v.get<double>(); },
      absent);
}
absl::StatusOr<std::string> ReadString(const Json& o, std::string_view k, std::string_view w,
                                       const std::string* absent) {
  return Get<std::string>(
      o, k, w, "a string", [](const Json& v) { return v.is_string(); },
      [](const Json& v) { return v.get<std::string>(); }, absent);
}
absl::StatusOr<bool> ReadBool(const Json& o, std::string_view k, std::string_view w, const bool* absent) {
  return Get<bool>(
      o, k, w, "true or false", [](const Json& v) { return v.is_boolean(); },
      [](const Json& v) { return v.get<bool>(); }, absent);
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, int max_depth) {
  Builder builder(max_depth);
  if (!Build(text, builder)) return absl::InvalidArgumentError(builder.error);
  return std::move(builder.root);
}

absl::StatusOr<Json> ParseJsonFile(std::string_view text, std::string_view file) {
  Builder builder(kMaxJsonDepth);
  if (Build(text, builder)) return std::move(builder.root);
  if (!builder.malformed_at.has_value()) return absl::InvalidArgumentError(StrCat(file, ": ", builder.error));
  const std::string_view before = text.substr(0, *builder.malformed_at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::string_view in_line = before.substr(before.rfind('\n') + 1);  // npos + 1 is 0
  // In UTF-8, all bytes of a character but the first are 10xxxxxx.
  const auto begins_character = [](char c) { return (c & 0xC0) != 0x80; };
  const auto column = 1 + std::count_if(in_line.begin(), in_line.end(), begins_character);
  return absl::InvalidArgumentError(StrCat(file, ", line ", line, ", column ", column, ": malformed JSON"));
}

std::string Dump(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string DumpSorted(const Json& value) {
  const nlohmann::json sorted = value;
  return sorted.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::int64_t> GetInt(const Json& o, std::string_view k, std::string_view w) {
  return ReadInt(o, k, w, nullptr);
}
absl::StatusOr<double> GetNumber(const Json& o, std::string_view k, std::string_view w) {
  return ReadNumber(o, k, w, nullptr);
}
absl::StatusOr<std::string> GetString(const Json& o, std::string_view k, std::string_view w) {
  return ReadString(o, k, w, nullptr);
}
absl::StatusOr<bool> GetBool(const Json& o, std::string_view k, std::string_view w) {
  return ReadBool(o, k, w, nullptr);
}
absl::StatusOr<std::int64_t> GetInt(const Json& o, std::string_view k, std::string_view w, std::int64_t absent) {
  return ReadInt(o, k, w, &absent);
}
absl::StatusOr<double> GetNumber(const Json& o, std::string_view k, std::string_view w, double absent) {
  return ReadNumber(o, k, w, &absent);
}
// NOLINTNEXTLINE(performance-unnecessary-value-param): same signature as the others
absl::StatusOr<std::string> GetString(const Json& o, std::string_view k, std::string_view w, std::string absent) {
  return ReadString(o, k, w, &absent);
}
absl::StatusOr<bool> GetBool(const Json& o, std::string_view k, std::string_view w, bool absent) {
  return ReadBool(o, k, w, &absent);
}

}  // namespace nibble::base
