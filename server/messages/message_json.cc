#include "server/messages/message_json.h"

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "google/protobuf/util/time_util.h"
#include "server/base/error.h"
#include "server/base/nearest.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::messages {
namespace {

using base::Json;
using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::util::TimeUtil;

constexpr std::int64_t kMaxDurationSeconds = 315'576'000'000;  // protobuf's limit: 10,000 years

std::string Prefix(const EnumDescriptor& type) {
  const std::string zero = type.FindValueByNumber(0)->name();
  const std::size_t end = zero.rfind("UNSPECIFIED");
  return end == std::string::npos ? std::string() : zero.substr(0, end);
}

// One value of a singular field (index -1) or of a repeated field.
Json ValueJson(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& r = *message.GetReflection();
  const bool many = index >= 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return many ? r.GetRepeatedInt32(message, &field, index) : r.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return many ? r.GetRepeatedInt64(message, &field, index) : r.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return many ? r.GetRepeatedUInt32(message, &field, index) : r.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return many ? r.GetRepeatedUInt64(message, &field, index) : r.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return many ? r.GetRepeatedDouble(message, &field, index) : r.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return many ? r.GetRepeatedFloat(message, &field, index) : r.GetFloat(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return many ? r.GetRepeatedBool(message, &field, index) : r.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return LowerEnumName(*field.enum_type(),
                           many ? r.GetRepeatedEnumValue(message, &field, index) : r.GetEnumValue(message, &field));
    case FieldDescriptor::CPPTYPE_STRING:
      return many ? r.GetRepeatedString(message, &field, index) : r.GetString(message, &field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(many ? r.GetRepeatedMessage(message, &field, index) : r.GetMessage(message, &field));
  }
  return nullptr;
}

std::string Path(std::string_view where, std::string_view name) {
  return where.empty() ? std::string(name) : base::StrCat(where, ".", name);
}

absl::Status WrongType(std::string_view path, const Json& got, std::string_view wanted) {
  return base::FieldError(path, base::StrCat("got ", base::Dump(got), ", wanted ", wanted));
}

// Sets a field to a JSON value; appends it if the field is repeated.
class Setter {
 public:
  Setter(Message& message, const FieldDescriptor& field, std::string path)
      : message_(message), field_(field), path_(std::move(path)), r_(*message.GetReflection()) {}

  absl::Status Set(const Json& value);

 private:
  absl::Status SetInteger(const Json& value, std::int64_t low, std::int64_t high,
                          const std::function<void(std::int64_t)>& put) {
    // Accepts 1e3 as an integer. Doubles below 9e15 (about 2^53) represent every integer exactly.
    const bool whole = value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>() &&
                       std::abs(value.get<double>()) < 9e15;
    const bool fits =
        value.is_number_unsigned()
            ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())
            : value.is_number_integer() || whole;
    if (!fits) return WrongType(path_, value, "a whole number");
    const std::int64_t number = whole ? static_cast<std::int64_t>(value.get<double>()) : value.get<std::int64_t>();
    if (number < low || number > high)
      return WrongType(path_, value, base::StrCat("a number from ", low, " to ", high));
    put(number);
    return absl::OkStatus();
  }

  Message& message_;
  const FieldDescriptor& field_;
  const std::string path_;
  const Reflection& r_;
};

absl::Status FromObject(const Json& json, Message& message, const std::string& where);

absl::Status SetDuration(const Json& value, Message& message, const std::string& path) {
  double seconds = 0;
  if (value.is_number()) {
    seconds = value.get<double>();
  } else if (value.is_string()) {
    std::string text = value.get<std::string>();
    if (text.ends_with('s')) text.pop_back();
    if (!absl::SimpleAtod(text, &seconds)) return WrongType(path, value, "seconds, such as \"90s\"");
  } else {
    return WrongType(path, value, "seconds, such as \"90s\"");
  }
  if (!(std::abs(seconds) <= static_cast<double>(kMaxDurationSeconds))) return WrongType(path, value, "fewer seconds");
  google::protobuf::Duration duration;
  constexpr std::int64_t kNanos = 1'000'000'000;
  const double whole = std::trunc(seconds);
  const std::int64_t nanos = std::llround((seconds - whole) * kNanos);  // up to kNanos, in which case it is carried
  duration.set_seconds(static_cast<std::int64_t>(whole) + nanos / kNanos);
  duration.set_nanos(static_cast<std::int32_t>(nanos % kNanos));
  message.CopyFrom(duration);
  return absl::OkStatus();
}

absl::Status Setter::Set(const Json& value) {
  const bool many = field_.is_repeated();
  switch (field_.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return SetInteger(value, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max(),
                        [&](std::int64_t v) {
                          const auto number = static_cast<std::int32_t>(v);
                          many ? r_.AddInt32(&message_, &field_, number) : r_.SetInt32(&message_, &field_, number);
                        });
    case FieldDescriptor::CPPTYPE_INT64:
      return SetInteger(
          value, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(),
          [&](std::int64_t v) { many ? r_.AddInt64(&message_, &field_, v) : r_.SetInt64(&message_, &field_, v); });
    case FieldDescriptor::CPPTYPE_DOUBLE:
      if (!value.is_number()) return WrongType(path_, value, "a number");
      many ? r_.AddDouble(&message_, &field_, value.get<double>())
           : r_.SetDouble(&message_, &field_, value.get<double>());
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_BOOL:
      if (!value.is_boolean()) return WrongType(path_, value, "true or false");
      many ? r_.AddBool(&message_, &field_, value.get<bool>()) : r_.SetBool(&message_, &field_, value.get<bool>());
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_STRING:
      if (!value.is_string()) return WrongType(path_, value, "text");
      many ? r_.AddString(&message_, &field_, value.get<std::string>())
           : r_.SetString(&message_, &field_, value.get<std::string>());
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_ENUM: {
      const EnumDescriptor& type = *field_.enum_type();
      std::string names;
      for (int i = 0; i < type.value_count(); ++i) {
        const std::string name = LowerEnumName(type, type.value(i)->number());
        if (value.is_string() && (absl::AsciiStrToLower(value.get<std::string>()) == name ||
                                  value.get<std::string>() == type.value(i)->name())) {
          many ? r_.AddEnumValue(&message_, &field_, type.value(i)->number())
               : r_.SetEnumValue(&message_, &field_, type.value(i)->number());
          return absl::OkStatus();
        }
        if (i > 0) names += base::StrCat(i > 1 ? ", " : "", name);
      }
      return WrongType(path_, value, base::StrCat("one of ", names));
    }
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      Message& child = many ? *r_.AddMessage(&message_, &field_) : *r_.MutableMessage(&message_, &field_);
      if (field_.message_type() == google::protobuf::Duration::descriptor()) return SetDuration(value, child, path_);
      return FromObject(value, child, path_);
    }
    default: return base::FieldError(path_, "cannot be set in JSON");
  }
}

absl::Status SetMap(const Json& value, Message& message, const FieldDescriptor& field, const std::string& path) {
  if (!value.is_object()) return WrongType(path, value, "an object");
  for (const auto& item : value.items()) {
    Message& entry = *message.GetReflection()->AddMessage(&message, &field);
    const Descriptor& type = *field.message_type();
    NIBBLE_RETURN_IF_ERROR(Setter(entry, *type.map_key(), Path(path, item.key())).Set(item.key()));
    NIBBLE_RETURN_IF_ERROR(Setter(entry, *type.map_value(), Path(path, item.key())).Set(item.value()));
  }
  return absl::OkStatus();
}

absl::Status FromObject(const Json& json, Message& message, const std::string& where) {
  if (!json.is_object()) return WrongType(where.empty() ? "spec" : where, json, "an object");
  std::set<const google::protobuf::OneofDescriptor*> chosen;
  for (const auto& item : json.items()) {
    const std::string path = Path(where, item.key());
    const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(item.key());
    if (field == nullptr) {
      std::vector<std::string> names;
      names.reserve(static_cast<std::size_t>(message.GetDescriptor()->field_count()));
      for (int i = 0; i < message.GetDescriptor()->field_count(); ++i)
        names.push_back(message.GetDescriptor()->field(i)->name());
      return base::FieldError(path, base::StrCat("unknown field", base::DidYouMeanOrList(item.key(), names)));
    }
    if (item.value().is_null()) continue;
    if (const auto* oneof = field->real_containing_oneof(); oneof != nullptr && !chosen.insert(oneof).second) {
      return base::FieldError(path, base::StrCat("only one ", oneof->name(), " can be set"));
    }
    if (field->is_map()) {
      NIBBLE_RETURN_IF_ERROR(SetMap(item.value(), message, *field, path));
    } else if (field->is_repeated()) {
      if (!item.value().is_array()) return WrongType(path, item.value(), "a list");
      for (const Json& element : item.value()) NIBBLE_RETURN_IF_ERROR(Setter(message, *field, path).Set(element));
    } else {
      NIBBLE_RETURN_IF_ERROR(Setter(message, *field, path).Set(item.value()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

Json ToJson(const Message& message) {
  const Descriptor& type = *message.GetDescriptor();
  if (type.full_name() == "google.protobuf.Timestamp") {
    google::protobuf::Timestamp time;
    time.CopyFrom(message);
    return TimeUtil::ToString(time);
  }
  if (type.full_name() == "google.protobuf.Duration") {
    google::protobuf::Duration duration;
    duration.CopyFrom(message);
    return TimeUtil::ToString(duration);
  }
  const Reflection& r = *message.GetReflection();
  Json object = Json::object();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.is_map()) {
      std::map<std::string, Json> map;  // sorted, because protobuf's order changes from run to run
      for (int k = 0; k < r.FieldSize(message, &field); ++k) {
        const Message& entry = r.GetRepeatedMessage(message, &field, k);
        const Descriptor& entry_type = *field.message_type();
        const Json key = ValueJson(entry, *entry_type.map_key(), -1);
        map[key.is_string() ? key.get<std::string>() : base::Dump(key)] = ValueJson(entry, *entry_type.map_value(), -1);
      }
      object[field.name()] = map;
    } else if (field.is_repeated()) {
      Json list = Json::array();
      for (int k = 0; k < r.FieldSize(message, &field); ++k) list.push_back(ValueJson(message, field, k));
      object[field.name()] = std::move(list);
    } else if (!field.has_presence() || r.HasField(message, &field)) {
      object[field.name()] = ValueJson(message, field, -1);
    }
  }
  return object;
}

absl::Status FromJson(const Json& json, Message& message) { return FromObject(json, message, ""); }

std::string EnumName(const EnumDescriptor& type, int number) {
  const auto* value = type.FindValueByNumber(number);
  if (value == nullptr) return "UNSPECIFIED";
  return value->name().substr(Prefix(type).size());
}

std::string LowerEnumName(const EnumDescriptor& type, int number) {
  return absl::AsciiStrToLower(EnumName(type, number));
}

}  // namespace nibble::messages
