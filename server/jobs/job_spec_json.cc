#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/job_spec_fields.h"

namespace nibble::jobs {

using base::Json;
using base::StrCat;

namespace {

// Reads one object of the document: each Get takes a key, and Finish refuses keys that were not taken. The first error
// wins.
class Reader {
 public:
  Reader(const Json& object, std::string prefix, absl::Status& status)
      : object_(object), prefix_(std::move(prefix)), status_(status) {
    if (!object.is_object())
      Fail(prefix_.empty() ? "spec" : prefix_.substr(0, prefix_.size() - 1), object, "an object");
  }

  void Get(std::string_view key, std::string& out) {
    if (const Json* v = Take(key, "a string", [](const Json& j) { return j.is_string(); })) out = v->get<std::string>();
  }
  void Get(std::string_view key, bool& out) {
    if (const Json* v = Take(key, "true or false", [](const Json& j) { return j.is_boolean(); })) out = v->get<bool>();
  }
  void Get(std::string_view key, std::int64_t& out) {
    if (const Json* v = Take(key, "an integer", IsInt)) out = v->get<std::int64_t>();
  }
  void Get(std::string_view key, double& out) {
    if (const Json* v = Take(key, "a number", [](const Json& j) { return j.is_number(); })) out = v->get<double>();
  }
  template <typename T>
  void Get(std::string_view key, std::optional<T>& out) {
    T value{};
    if (Has(key)) {
      Get(key, value);
      out = value;
    } else {
      seen_.push_back(key);
    }
  }
  void Get(std::string_view key, std::vector<std::string>& out) {
    const auto all_strings = [](const Json& j) {
      if (!j.is_array()) return false;
      for (const Json& item : j) {
        if (!item.is_string()) return false;
      }
      return true;
    };
    if (const Json* v = Take(key, "a list of strings", all_strings)) out = v->get<std::vector<std::string>>();
  }
  void Get(std::string_view key, std::map<std::string, std::string>& out) {
    GetMap(key, "an object of strings", [](const Json& j) { return j.is_string(); }, out);
  }
  void Get(std::string_view key, std::map<std::string, std::int64_t>& out) {
    GetMap(key, "an object of integers", IsInt, out);
  }
  void Get(std::string_view key, std::map<std::string, double>& out) {
    GetMap(key, "an object of numbers", [](const Json& j) { return j.is_number(); }, out);
  }
  // The object under `key`, or an empty one.
  const Json& Object(std::string_view key) {
    static const Json& empty = *new Json(Json::object());
    const Json* v = Take(key, "an object", [](const Json& j) { return j.is_object(); });
    return v != nullptr ? *v : empty;
  }
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  void Finish() {
    if (!status_.ok() || !object_.is_object()) return;
    for (const auto& item : object_.items()) {
      if (std::find(seen_.begin(), seen_.end(), item.key()) != seen_.end()) continue;
      status_ = base::FieldError((prefix_ + item.key()).substr(0, 128), "is not a field of a job spec");
      return;
    }
  }

 private:
  static bool IsInt(const Json& j) {
    return j.is_number_integer() && (!j.is_number_unsigned() || j.get<std::uint64_t>() <= INT64_MAX);
  }
  template <typename Value, typename Check>
  void GetMap(std::string_view key, std::string_view wanted, Check check, std::map<std::string, Value>& out) {
    const Json* v =
        Take(key, wanted, [&](const Json& j) { return j.is_object() && std::all_of(j.begin(), j.end(), check); });
    if (v == nullptr) return;
    for (const auto& item : v->items()) out[item.key()] = item.value().template get<Value>();
  }
  void Fail(const std::string& field, const Json& got, std::string_view wanted) {
    if (status_.ok())
      status_ = base::FieldError(field, StrCat("is ", base::Dump(got).substr(0, 64), ", wanted ", wanted));
  }
  // Null if the key is absent or its value is null.
  const Json* Find(std::string_view key) const {
    if (!object_.is_object()) return nullptr;
    const auto it = object_.find(key);
    return it != object_.end() && !it->is_null() ? &*it : nullptr;
  }
  // `key` must outlive the reader: a literal.
  template <typename Check>
  const Json* Take(std::string_view key, std::string_view wanted, Check check) {
    seen_.push_back(key);
    const Json* value = status_.ok() ? Find(key) : nullptr;
    if (value == nullptr || check(*value)) return value;
    Fail(prefix_ + std::string(key), *value, wanted);
    return nullptr;
  }

  const Json& object_;
  const std::string prefix_;
  absl::Status& status_;
  std::vector<std::string_view> seen_;
};

template <typename T>
void Put(Json& json, const char* key, const T& value) {
  json[key] = value;
}
template <typename T>
void Put(Json& json, const char* key, const std::optional<T>& value) {
  if (value.has_value()) json[key] = *value;
}

template <IsSpec Spec>
Json Write(const Spec& spec, const std::string& method) {
  Json json = Json::object();
  ForEachField<Spec>([&](const auto& field) {
    const auto& value = spec.*field.member;
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (IsSpec<Value>) {
      if (!field.is_method || method == field.name) json[field.name] = Write(value, method);
    } else if constexpr (IsOptionalSpec<Value>) {
      if (value.has_value()) json[field.name] = Write(*value, method);
    } else {
      Put(json, field.name, value);
    }
  });
  return json;
}

template <IsSpec Spec>
void Read(const Json& json, const std::string& prefix, Spec& out, absl::Status& status) {
  Reader reader(json, prefix, status);
  ForEachField<Spec>([&](const auto& field) {
    auto& value = out.*field.member;
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (IsSpec<Value> || IsOptionalSpec<Value>) {
      const Json& object = reader.Object(field.name);
      const std::string path = StrCat(prefix, field.name, ".");
      if constexpr (IsSpec<Value>) {
        Read(object, path, value, status);
      } else if (reader.Has(field.name)) {
        Read(object, path, value.emplace(), status);
      }
    } else {
      reader.Get(field.name, value);
    }
  });
  reader.Finish();
}

// `value` without the members that are equal in `from`.
Json Difference(Json value, const Json& from) {
  for (auto it = value.begin(); it != value.end();) {
    const auto same = from.find(it.key());
    if (same != from.end() && it->is_object() && same->is_object()) *it = Difference(std::move(*it), *same);
    const bool nothing = it->is_object() && it->empty();
    it = nothing || (same != from.end() && *same == *it) ? value.erase(it) : std::next(it);
  }
  return value;
}

}  // namespace

Json ToJson(const JobSpec& spec) { return Write(spec, spec.method); }

std::string Digest(const JobSpec& spec) {
  JobSpec defaults;
  // ToJson leaves out other methods and an unset ramp, so `defaults` must have the same method and ramp as `spec`.
  defaults.method = spec.method;
  if (spec.bitnet_qat.warmup_lambda.has_value()) defaults.bitnet_qat.warmup_lambda.emplace();
  Json differs = Difference(ToJson(spec), ToJson(defaults));
  differs["method"] = spec.method;
  return base::Sha256Hex(base::DumpSorted(differs));  // the key order of ToJson may change
}

absl::StatusOr<JobSpec> ParseJobSpec(const Json& json) {
  JobSpec spec;
  absl::Status status;
  Read(json, "", spec, status);
  if (!status.ok()) return status;
  return spec;
}

Json EvalDataJson(const JobSpec& spec) {
  Json json = {{"max_seq_len", spec.data.max_seq_len},
               {"train_on_prompt", spec.data.train_on_prompt},
               {"overlong", spec.data.overlong.value_or("")},
               {"trained_format", spec.data.format.value_or("text")}};
  if (spec.data.add_special_tokens.has_value()) json["add_special_tokens"] = *spec.data.add_special_tokens;
  if (spec.eval_fraction.has_value()) json["held_out"] = *spec.eval_fraction;
  return json;
}

}  // namespace nibble::jobs
