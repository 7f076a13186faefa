#include "server/base/json.h"

#include <algorithm>
#include <set>
#include <vector>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"

namespace nibble::base {
namespace {

constexpr std::size_t kMaxShownKey = 100;  // bytes
constexpr std::size_t kFewKeys = 16;  // a set becomes faster at about this size

// Builds the value and rejects unbounded nesting and duplicate keys, which nlohmann accepts.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(int max_depth) : max_depth_(max_depth) {}
  Json root;
  std::string error;

  bool null() override { return Put(nullptr); }
  bool boolean(bool v) override { return Put(v); }
  bool number_integer(number_integer_t v) override { return Put(v); }
  bool number_unsigned(number_unsigned_t v) override { return Put(v); }
  bool number_float(number_float_t v, const string_t&) override { return Put(v); }
  bool string(string_t& v) override { return Put(std::move(v)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }
  bool key(string_t& k) override {
    if (!IsNew(k)) {
      const std::size_t shown = WholeCharacters(k, std::min(k.size(), kMaxShownKey));
      error = StrCat("duplicate key \"", k.substr(0, shown), shown < k.size() ? "..." : "", "\"");
      return false;
    }
    key_ = std::move(k);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    error = StrCat("malformed JSON at byte ", position);
    return false;
  }

 private:
  // Linear search in a small object; a larger object has a set of its keys.
  bool IsNew(const std::string& key) {
    const auto& object = stack_.back()->get_ref<const Json::object_t&>();
    if (object.size() < kFewKeys) {
      return std::none_of(object.begin(), object.end(), [&key](const auto& member) { return member.first == key; });
    }
    std::set<std::string>& keys = keys_.back();
    if (keys.empty()) {
      for (const auto& member : object) keys.insert(member.first);
    }
    return keys.insert(key).second;
  }
  Json* Insert(Json value) {
    if (stack_.empty()) {
      root = std::move(value);
      return &root;
    }
    Json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    // Not operator[]: its lookup takes linear time in an ordered object, and IsNew has already checked the key.
    auto& object = parent.get_ref<Json::object_t&>();
    object.Container::emplace_back(std::move(key_), std::move(value));
    return &object.back().second;
  }
  bool Put(Json value) {
    Insert(std::move(value));
    return true;
  }
  bool Open(Json value) {
    if (static_cast<int>(stack_.size()) >= max_depth_) {
      error = StrCat("nested deeper than ", max_depth_);
      return false;
    }
    stack_.push_back(Insert(std::move(value)));
    keys_.emplace_back();
    return true;
  }
  bool Close() {
    stack_.pop_back();
    keys_.pop_back();
    return true;
  }

  int max_depth_;
  // A pointer stays valid while its container is open: siblings are added only after the container closes.
  std::vector<Json*> stack_;
  std::vector<std::set<std::string>> keys_;  // per open container; filled once an object has kFewKeys members
  std::string key_;
};

template <typename T, typename Check, typename Read>
absl::StatusOr<T> Get(const Json& object, std::string_view key, std::string_view where, const char* wanted, Check check,
                      Read read, const T* absent) {
  const auto it = object.is_object() ? object.find(std::string(key)) : object.end();
  if (it == object.end() || it->is_null()) {
    if (absent != nullptr) return *absent;
    return absl::InvalidArgumentError(StrCat(where, ": no \"", key, "\", wanted ", wanted));
  }
  if (!check(*it)) {
    return absl::InvalidArgumentError(StrCat(where, ": \"", key, "\" is ", Dump(*it).substr(0, 64), ", wanted ", wanted));
  }
  return read(*it);
}

absl::StatusOr<std::int64_t> ReadInt(const Json& o, std::string_view k, std::string_view w, const std::int64_t* absent) {
  return Get<std::int64_t>(
      o, k, w, "an integer",
      [](const Json& v) { return v.is_number_integer() && (!v.is_number_unsigned() || v.get<std::uint64_t>() <= INT64_MAX); },
      [](const Json& v) { return v.get<std::int64_t>(); }, absent);
}
absl::StatusOr<double> ReadNumber(const Json& o, std::string_view k, std::string_view w, const double* absent) {
  return Get<double>(o, k, w, "a number", [](const Json& v) { return v.is_number(); },
                     [](const Json& v) { return v.get<double>(); }, absent);
}
absl::StatusOr<std::string> ReadString(const Json& o, std::string_view k, std::string_view w, const std::string* absent) {
  return Get<std::string>(o, k, w, "a string", [](const Json& v) { return v.is_string(); },
                          [](const Json& v) { return v.get<std::string>(); }, absent);
}
absl::StatusOr<bool> ReadBool(const Json& o, std::string_view k, std::string_view w, const bool* absent) {
  return Get<bool>(o, k, w, "true or false", [](const Json& v) { return v.is_boolean(); },
                   [](const Json& v) { return v.get<bool>(); }, absent);
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, int max_depth) {
  // nlohmann treats a NUL as the end of the input and would ignore the rest.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return absl::InvalidArgumentError(StrCat("malformed JSON at byte ", nul));
  }
  Builder builder(max_depth);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::InvalidArgumentError(builder.error.empty() ? "malformed JSON" : builder.error);
  }
  return std::move(builder.root);
}

std::string Dump(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string DumpSorted(const Json& value) {
  const nlohmann::json sorted = value;
  return sorted.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::int64_t> GetInt(const Json& o, std::string_view k, std::string_view w) { return ReadInt(o, k, w, nullptr); }
absl::StatusOr<double> GetNumber(const Json& o, std::string_view k, std::string_view w) { return ReadNumber(o, k, w, nullptr); }
absl::StatusOr<std::string> GetString(const Json& o, std::string_view k, std::string_view w) { return ReadString(o, k, w, nullptr); }
absl::StatusOr<bool> GetBool(const Json& o, std::string_view k, std::string_view w) { return ReadBool(o, k, w, nullptr); }
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
