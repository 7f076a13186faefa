// Converts JobSpec between the API's message and jobs::JobSpec. jobs::SpecFields lists the fields: each is found in the
// message by its path. The tables below list what the API has beyond them.
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/reflection.h"
#include "google/protobuf/text_format.h"
#include "server/base/error.h"
#include "server/base/mutex.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/job_spec_fields.h"
#include "server/jobs/method.h"
#include "server/rpc/dataset_proto.h"
#include "server/rpc/job_proto.h"
#include "server/rpc/status.h"

namespace nibble::rpc {

namespace {

using base::FieldError;
using base::StrCat;
using google::protobuf::Descriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// A field of the API with only one implemented value, in protobuf's text format. Other values are UNIMPLEMENTED.
struct FixedField {
  std::string_view name;
  std::string_view value;
  bool is_shown = true;  // whether a returned spec has it
};
constexpr FixedField kFixedFields[] = {
    {"BitNetQatMethod.weight_scale", "WEIGHT_SCALE_ABSMEAN_TENSOR"},
    {"DataConfig.shuffle", "true"},
    {"LossMask.eos", "EOS_POLICY_TURN", false},
    {"LossMask.honour_message_flag", "true", false},
    {"PublishPolicy.evaluate_int8", "true"},
    {"PublishPolicy.load", "false", false},
    {"RunConfig.keep_best", "false", false},
};
// Fields that this file converts by hand, or whose values are all accepted.
constexpr std::string_view kOtherFields[] = {"JobSpec.device", "JobSpec.labels", "RunConfig.deterministic"};

const FixedField* FindFixed(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kFixedFields), std::end(kFixedFields), [&](const auto& f) { return f.name == name; });
  return found == std::end(kFixedFields) ? nullptr : found;
}

// For each field of SpecFields<Spec>, in that order: its path in `type`, the API's message for Spec. Empty for a field
// that is converted by hand. Computed once, because a page of jobs has up to a thousand specs.
using Steps = std::vector<const FieldDescriptor*>;
template <jobs::IsSpec Spec>
const std::vector<Steps>& StepsOf(const Descriptor& type) {
  static const std::vector<Steps>& all = *[&type] {
    auto* found = new std::vector<Steps>;
    jobs::ForEachField<Spec>([&](const auto& listed) {
      Steps& steps = found->emplace_back();
      const Descriptor* message = &type;
      for (const std::string& name :
           std::vector<std::string>(absl::StrSplit(listed.api_path, '.', absl::SkipEmpty()))) {
        steps.push_back(message->FindFieldByName(name));
        message = steps.back()->message_type();
      }
    });
    return found;
  }();
  return all;
}

std::string NameOf(const FieldDescriptor& field) { return StrCat(field.containing_type()->name(), ".", field.name()); }

// Adds the fields of `type` that jobs::SpecFields lists, and the messages on the way to them.
template <jobs::IsSpec Spec>
void AddListed(const Descriptor& type, std::set<std::string>& names) {
  std::size_t at = 0;
  jobs::ForEachField<Spec>([&](const auto& listed) {
    using Value = std::remove_cvref_t<decltype(std::declval<Spec>().*listed.member)>;
    const Steps& steps = StepsOf<Spec>(type)[at++];
    for (const FieldDescriptor* field : steps) names.insert(NameOf(*field));
    if constexpr (jobs::IsSpec<Value>) AddListed<Value>(*steps.back()->message_type(), names);
    if constexpr (jobs::IsOptionalSpec<Value>)
      AddListed<typename Value::value_type>(*steps.back()->message_type(), names);
  });
}

bool IsListed(const FieldDescriptor& field) {
  static const std::set<std::string>& names = *[] {
    auto* listed = new std::set<std::string>;
    AddListed<jobs::JobSpec>(*v1::JobSpec::descriptor(), *listed);
    return listed;
  }();
  return names.contains(NameOf(field));
}

// "SEGMENTED" for PACKING_MODE_SEGMENTED.
std::string ShortName(const EnumValueDescriptor& value) {
  const std::string zero = value.type()->FindValueByNumber(0)->name();
  return value.name().substr(zero.size() - std::string_view("UNSPECIFIED").size());
}
// The name of the value in jobs::JobSpec: "segmented".
std::string TextOf(const EnumValueDescriptor& value) {
  const std::string text = absl::AsciiStrToLower(ShortName(value));
  return value.type() == v1::ComputeDtype_descriptor() && text == "f32" ? "fp32" : text;
}

absl::Status UnknownEnum(const FieldDescriptor& field, const std::string& path, int number) {
  std::string known;
  for (int i = 0; i < field.enum_type()->value_count(); ++i) {
    const EnumValueDescriptor& value = *field.enum_type()->value(i);
    if (value.number() != 0) known = StrCat(known, known.empty() ? "" : " or ", ShortName(value));
  }
  return FieldError(path, StrCat("is ", number, ", wanted ", known));
}

// The value of a singular enum; null for UNSPECIFIED.
absl::StatusOr<const EnumValueDescriptor*> EnumOf(const Message& message, const FieldDescriptor& field,
                                                  const std::string& path) {
  const int number = message.GetReflection()->GetEnumValue(message, &field);
  if (number == 0) return nullptr;
  const EnumValueDescriptor* value = field.enum_type()->FindValueByNumber(number);
  if (value == nullptr) return UnknownEnum(field, path, number);
  return value;
}

// The error names the refused value: the name of the field alone would mean that none of its values is implemented.
absl::Status CheckFixed(const Message& message, const FieldDescriptor& field, const FixedField& fixed,
                        const std::string& path) {
  std::string text;
  google::protobuf::TextFormat::PrintFieldValueToString(message, &field, /*index=*/-1, &text);
  if (text == fixed.value) return absl::OkStatus();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    NIBBLE_ASSIGN_OR_RETURN(const EnumValueDescriptor* value, EnumOf(message, field, path));
    if (value == nullptr) return absl::OkStatus();
    text = ShortName(*value);
  }
  return Unimplemented(StrCat(fixed.name, " ", text));
}

// Refuses every field that is set and not implemented. `prefix`: the path of `message`, with a dot at its end.
absl::Status CheckImplemented(const Message& message, const std::string& prefix) {
  std::vector<const FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    const std::string name = NameOf(*field), path = StrCat(prefix, field->name());
    if (const FixedField* fixed = FindFixed(name); fixed != nullptr) {
      NIBBLE_RETURN_IF_ERROR(CheckFixed(message, *field, *fixed, path));
    } else if (name == "JobSpec.runtime") {
      return FieldError("runtime",
                        "must not be set: only the server sets it; remove it from a spec that was copied from a job");
    } else if (!IsListed(*field)) {
      if (std::find(std::begin(kOtherFields), std::end(kOtherFields), name) == std::end(kOtherFields))
        return Unimplemented(name);
    } else if (field->message_type() != nullptr && !field->is_map()) {
      NIBBLE_RETURN_IF_ERROR(CheckImplemented(message.GetReflection()->GetMessage(message, field), StrCat(path, ".")));
    }
  }
  return absl::OkStatus();
}

// One scalar field of a message.
struct Scalar {
  const Message& message;
  const FieldDescriptor& field;
  std::string path;  // for errors
};

absl::Status Take(const Scalar& in, std::span<const char* const> choices, std::string& out) {
  if (in.field.cpp_type() != FieldDescriptor::CPPTYPE_ENUM) {
    out = in.message.GetReflection()->GetString(in.message, &in.field);
    return absl::OkStatus();
  }
  NIBBLE_ASSIGN_OR_RETURN(const EnumValueDescriptor* value, EnumOf(in.message, in.field, in.path));
  if (value == nullptr) return absl::OkStatus();
  const std::string text = TextOf(*value);
  if (std::find(choices.begin(), choices.end(), text) == choices.end())
    return Unimplemented(StrCat(NameOf(in.field), " ", ShortName(*value)));
  out = text;
  return absl::OkStatus();
}
absl::Status Take(const Scalar& in, std::span<const char* const>, std::int64_t& out) {
  const Reflection& r = *in.message.GetReflection();
  const bool is_32 = in.field.cpp_type() == FieldDescriptor::CPPTYPE_INT32;
  out = is_32 ? r.GetInt32(in.message, &in.field) : r.GetInt64(in.message, &in.field);
  return absl::OkStatus();
}
absl::Status Take(const Scalar& in, std::span<const char* const>, double& out) {
  out = in.message.GetReflection()->GetDouble(in.message, &in.field);
  return absl::OkStatus();
}
absl::Status Take(const Scalar& in, std::span<const char* const>, bool& out) {
  out = in.message.GetReflection()->GetBool(in.message, &in.field);
  return absl::OkStatus();
}
absl::Status Take(const Scalar& in, std::span<const char* const>, std::vector<std::string>& out) {
  const auto values = in.message.GetReflection()->GetRepeatedFieldRef<std::string>(in.message, &in.field);
  out.assign(values.begin(), values.end());
  return absl::OkStatus();
}
template <typename Value>
absl::Status Take(const Scalar& in, std::span<const char* const>, std::map<std::string, Value>& out) {
  const Reflection& r = *in.message.GetReflection();
  const FieldDescriptor& value = *in.field.message_type()->map_value();
  for (int i = 0; i < r.FieldSize(in.message, &in.field); ++i) {
    const Message& entry = r.GetRepeatedMessage(in.message, &in.field, i);
    const std::string key = entry.GetReflection()->GetString(entry, in.field.message_type()->map_key());
    NIBBLE_RETURN_IF_ERROR(Take(Scalar{entry, value, StrCat(in.path, ".", key)}, {}, out[key]));
  }
  return absl::OkStatus();
}
template <typename Value>
absl::Status Take(const Scalar& in, std::span<const char* const> choices, std::optional<Value>& out) {
  if (in.field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM &&
      in.message.GetReflection()->GetEnumValue(in.message, &in.field) == 0) {
    return absl::OkStatus();
  }
  return Take(in, choices, out.emplace());
}

// Reads the fields of `in` that are set.
template <jobs::IsSpec Spec>
absl::Status TakeFields(const Message& in, const std::string& prefix, Spec& out) {
  absl::Status status;
  std::size_t at = 0;
  jobs::ForEachField<Spec>([&](const auto& listed) {
    const Message* message = &in;
    const Steps& steps = StepsOf<Spec>(*in.GetDescriptor())[at++];
    for (std::size_t i = 0; status.ok() && i < steps.size(); ++i) {
      const FieldDescriptor* field = steps[i];
      const Reflection& r = *message->GetReflection();
      if (field->is_repeated() ? r.FieldSize(*message, field) == 0 : !r.HasField(*message, field)) return;
      auto& value = out.*listed.member;
      using Value = std::remove_cvref_t<decltype(value)>;
      if constexpr (jobs::IsSpec<Value>) {
        status = TakeFields(r.GetMessage(*message, field), StrCat(prefix, listed.name, "."), value);
      } else if constexpr (jobs::IsOptionalSpec<Value>) {
        status = TakeFields(r.GetMessage(*message, field), StrCat(prefix, listed.name, "."), value.emplace());
      } else if constexpr (!std::is_same_v<Value, std::map<std::string, std::string>>) {
        if (i + 1 == steps.size()) {
          status = Take(Scalar{*message, *field, StrCat(prefix, listed.api_path)}, listed.choices, value);
        } else {
          message = &r.GetMessage(*message, field);
        }
      }
    }
  });
  return status;
}

// Sets each seed that is unset in `in` to the run's seed.
template <jobs::IsSpec Spec>
void TakeRunSeed(const Message& in, std::int64_t run_seed, Spec& out) {
  std::size_t at = 0;
  jobs::ForEachField<Spec>([&](const auto& listed) {
    const Steps& steps = StepsOf<Spec>(*in.GetDescriptor())[at++];
    auto& value = out.*listed.member;
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (jobs::IsSpec<Value>) {
      TakeRunSeed(in.GetReflection()->GetMessage(in, steps.back()), run_seed, value);
    } else if constexpr (std::is_same_v<Value, std::int64_t>) {
      if (listed.defaults_to_run_seed && !in.GetReflection()->HasField(in, steps.back())) value = run_seed;
    }
  });
}

void Put(Message& message, const FieldDescriptor& field, const std::string& value) {
  const Reflection& r = *message.GetReflection();
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_ENUM) {
    if (!value.empty()) r.SetString(&message, &field, value);
    return;
  }
  for (int i = 1; i < field.enum_type()->value_count(); ++i) {
    const EnumValueDescriptor* known = field.enum_type()->value(i);
    if (TextOf(*known) != value) continue;
    r.SetEnum(&message, &field, known);
    return;
  }
}
void Put(Message& message, const FieldDescriptor& field, std::int64_t value) {
  const Reflection& r = *message.GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
    r.SetInt32(&message, &field, static_cast<std::int32_t>(value));
  } else {
    r.SetInt64(&message, &field, value);
  }
}
void Put(Message& message, const FieldDescriptor& field, double value) {
  message.GetReflection()->SetDouble(&message, &field, value);
}
void Put(Message& message, const FieldDescriptor& field, bool value) {
  message.GetReflection()->SetBool(&message, &field, value);
}
void Put(Message& message, const FieldDescriptor& field, const std::vector<std::string>& values) {
  for (const std::string& value : values) message.GetReflection()->AddString(&message, &field, value);
}
template <typename Value>
void Put(Message& message, const FieldDescriptor& field, const std::map<std::string, Value>& values) {
  for (const auto& [key, value] : values) {
    Message& entry = *message.GetReflection()->AddMessage(&message, &field);
    entry.GetReflection()->SetString(&entry, field.message_type()->map_key(), key);
    Put(entry, *field.message_type()->map_value(), value);
  }
}
template <typename Value>
void Put(Message& message, const FieldDescriptor& field, const std::optional<Value>& value) {
  if (value.has_value()) Put(message, field, *value);
}

// A message that has only the fixed fields that are shown.
std::unique_ptr<Message> MakeFixed(const Message& like) {
  std::unique_ptr<Message> made(like.New());
  for (int i = 0; i < like.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = like.GetDescriptor()->field(i);
    const FixedField* fixed = FindFixed(NameOf(*field));
    if (fixed == nullptr || !fixed->is_shown || IsListed(*field)) continue;
    google::protobuf::TextFormat::ParseFieldValueFromString(std::string(fixed->value), field, made.get());
  }
  return made;
}

// Sets the fixed fields of a new message.
void PutFixed(Message& message) {
  static base::Mutex& mutex = *new base::Mutex;
  static auto& made = *new std::map<const Descriptor*, std::unique_ptr<Message>>;
  const Message* fixed = nullptr;
  {
    base::MutexLock lock(mutex);
    std::unique_ptr<Message>& known = made[message.GetDescriptor()];
    if (known == nullptr) known = MakeFixed(message);
    fixed = known.get();
  }
  message.CopyFrom(*fixed);
}

template <jobs::IsSpec Spec>
void PutFields(const Spec& in, const std::string& method, Message& out) {
  PutFixed(out);
  std::size_t at = 0;
  jobs::ForEachField<Spec>([&](const auto& listed) {
    const auto& value = in.*listed.member;
    using Value = std::remove_cvref_t<decltype(value)>;
    Message* message = &out;
    const Steps& steps = StepsOf<Spec>(*out.GetDescriptor())[at++];
    if (listed.is_method && method != listed.name) return;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const FieldDescriptor* field = steps[i];
      if constexpr (jobs::IsSpec<Value>) {
        PutFields(value, method, *message->GetReflection()->MutableMessage(message, field));
      } else if constexpr (jobs::IsOptionalSpec<Value>) {
        if (value.has_value()) PutFields(*value, method, *message->GetReflection()->MutableMessage(message, field));
      } else if constexpr (!std::is_same_v<Value, std::map<std::string, std::string>>) {
        if (i + 1 == steps.size()) {
          Put(*message, *field, value);
        } else {
          const bool is_new = !message->GetReflection()->HasField(*message, field);
          message = message->GetReflection()->MutableMessage(message, field);
          if (is_new) PutFixed(*message);
        }
      }
    }
  });
}

absl::StatusOr<std::string> DeviceOf(const v1::Device& device) {
  switch (device.kind()) {
    case v1::DEVICE_KIND_UNSPECIFIED:
    case v1::DEVICE_KIND_AUTO: return "auto";
    case v1::DEVICE_KIND_CPU: return "cpu";
    case v1::DEVICE_KIND_CUDA: return StrCat("cuda:", device.ordinal());
    default:
      return FieldError("device.kind", StrCat("is ", static_cast<int>(device.kind()), ", wanted AUTO, CPU or CUDA"));
  }
}

v1::Device DeviceOf(const std::string& device) {
  constexpr std::string_view kCuda = "cuda:";
  v1::Device out;
  if (device.starts_with(kCuda)) {
    out.set_kind(v1::DEVICE_KIND_CUDA);
    out.set_ordinal(std::atoi(device.c_str() + kCuda.size()));
  } else {
    out.set_kind(device == "auto" ? v1::DEVICE_KIND_AUTO : v1::DEVICE_KIND_CPU);
  }
  return out;
}

}  // namespace

absl::StatusOr<jobs::DataConfig> FromProto(const v1::DataConfig& config) {
  NIBBLE_RETURN_IF_ERROR(CheckImplemented(config, "data."));
  jobs::DataConfig out;
  NIBBLE_RETURN_IF_ERROR(TakeFields(config, "data.", out));
  return out;
}

absl::StatusOr<jobs::JobSpec> FromProto(const v1::JobSpec& spec) {
  const FieldDescriptor* method =
      spec.GetReflection()->GetOneofFieldDescriptor(spec, v1::JobSpec::descriptor()->FindOneofByName("method"));
  if (method == nullptr) return FieldError("method", StrCat("is not set, wanted ", jobs::MethodChoices()));
  NIBBLE_RETURN_IF_ERROR(CheckImplemented(spec, ""));
  jobs::JobSpec out;
  out.method = method->name();
  NIBBLE_RETURN_IF_ERROR(TakeFields(spec, "", out));
  NIBBLE_ASSIGN_OR_RETURN(out.device, DeviceOf(spec.device()));
  TakeRunSeed(spec, out.run.seed, out);
  for (const auto& [key, value] : spec.labels()) out.labels[key] = value;
  return out;
}

v1::JobSpec ToProto(const jobs::JobSpec& spec) {
  v1::JobSpec out;
  PutFields(spec, spec.method, out);
  *out.mutable_device() = DeviceOf(spec.device);
  out.mutable_run()->set_deterministic(true);
  for (const auto& [key, value] : spec.labels) (*out.mutable_labels())[key] = value;
  return out;
}

}  // namespace nibble::rpc
