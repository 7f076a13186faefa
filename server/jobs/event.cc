#include "server/jobs/event.h"

#include <cmath>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "server/base/log.h"

namespace nibble::jobs {

using base::Json;

namespace {

template <typename Event, typename Value>
struct Field {
  constexpr Field(const char* name, Value Event::* member) : name(name), member(member) {}
  const char* name;
  Value Event::* member;
};

// All fields of an event, in the order of the JSON form.
template <typename Event>
struct Fields;
template <>
struct Fields<Runtime> {
  static constexpr auto kAll =
      std::tuple(Field("binary", &Runtime::binary), Field("isa", &Runtime::isa), Field("threads", &Runtime::threads));
};
template <>
struct Fields<StateEvent> {
  static constexpr auto kAll =
      std::tuple(Field("state", &StateEvent::state), Field("from", &StateEvent::from),
                 Field("reason", &StateEvent::reason), Field("message", &StateEvent::message),
                 Field("step", &StateEvent::step), Field("max_steps", &StateEvent::max_steps),
                 Field("saved_step", &StateEvent::saved_step), Field("resumed_step", &StateEvent::resumed_step),
                 Field("retry_in_s", &StateEvent::retry_in_s), Field("runtime", &StateEvent::runtime));
};
template <>
struct Fields<StepEvent> {
  static constexpr auto kAll = std::tuple(
      Field("step", &StepEvent::step), Field("max_steps", &StepEvent::max_steps), Field("loss", &StepEvent::loss),
      Field("lr", &StepEvent::lr), Field("grad_norm", &StepEvent::grad_norm), Field("epoch", &StepEvent::epoch),
      Field("epochs_done", &StepEvent::epochs_done), Field("tokens", &StepEvent::tokens),
      Field("trainable_tokens", &StepEvent::trainable_tokens), Field("tokens_per_s", &StepEvent::tokens_per_s),
      Field("step_ms", &StepEvent::step_ms), Field("kernel_launches", &StepEvent::kernel_launches),
      Field("peak_memory_bytes", &StepEvent::peak_memory_bytes), Field("launches", &StepEvent::launches));
};
template <>
struct Fields<EvalEvent> {
  static constexpr auto kAll = std::tuple(Field("step", &EvalEvent::step), Field("eval_loss", &EvalEvent::eval_loss),
                                          Field("best", &EvalEvent::best), Field("tokens", &EvalEvent::tokens),
                                          Field("duration_ms", &EvalEvent::duration_ms),
                                          Field("peak_memory_bytes", &EvalEvent::peak_memory_bytes),
                                          Field("what", &EvalEvent::what), Field("launches", &EvalEvent::launches));
};
template <>
struct Fields<CheckpointEvent> {
  static constexpr auto kAll =
      std::tuple(Field("step", &CheckpointEvent::step), Field("directory", &CheckpointEvent::directory),
                 Field("bytes", &CheckpointEvent::bytes), Field("duration_ms", &CheckpointEvent::duration_ms),
                 Field("digest", &CheckpointEvent::digest), Field("metrics", &CheckpointEvent::metrics));
};
template <>
struct Fields<ModelEvent> {
  static constexpr auto kAll = std::tuple(Field("model", &ModelEvent::model), Field("format", &ModelEvent::format),
                                          Field("digest", &ModelEvent::digest), Field("bytes", &ModelEvent::bytes));
};
template <>
struct Fields<WarningEvent> {
  static constexpr auto kAll =
      std::tuple(Field("reason", &WarningEvent::reason), Field("message", &WarningEvent::message),
                 Field("row_ids", &WarningEvent::row_ids));
};
template <>
struct Fields<LogEvent> {
  static constexpr auto kAll = std::tuple(Field("message", &LogEvent::message), Field("launches", &LogEvent::launches));
};

template <typename Event>
Json Write(const Event& event);
template <typename Event>
Event Read(const Json& fields);

void Put(Json& json, const char* key, const std::string& value) {
  if (!value.empty()) json[key] = value;
}
template <typename Value>
void Put(Json& json, const char* key, const std::optional<Value>& value) {
  if (!value.has_value()) return;
  if constexpr (std::is_same_v<Value, Runtime>) {
    json[key] = Write(*value);
  } else {
    json[key] = *value;
  }
}
template <typename Value>
void Put(Json& json, const char* key, const std::map<std::string, Value>& values) {
  if (!values.empty()) json[key] = values;
}
void Put(Json& json, const char* key, const std::vector<std::int64_t>& values) {
  if (!values.empty()) json[key] = values;
}

bool Take(const Json& json, std::int64_t& out) {
  if (json.is_number_float()) {
    const auto number = json.get<double>();
    if (!(std::abs(number) < 9.2e18)) return false;  // NaN, or beyond the range of int64
    out = static_cast<std::int64_t>(number);
    return true;
  }
  if (!json.is_number_integer() || (json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX)) return false;
  out = json.get<std::int64_t>();
  return true;
}
bool Take(const Json& json, double& out) {
  if (json.is_null()) {
    out = std::numeric_limits<double>::quiet_NaN();
    return true;
  }
  if (json.is_number()) out = json.get<double>();
  return json.is_number();
}
bool Take(const Json& json, bool& out) {
  if (json.is_boolean()) out = json.get<bool>();
  return json.is_boolean();
}
bool Take(const Json& json, std::string& out) {
  if (json.is_string()) out = json.get<std::string>();
  return json.is_string();
}
bool Take(const Json& json, Runtime& out) {
  if (json.is_object()) out = Read<Runtime>(json);
  return json.is_object();
}
template <typename Value>
bool Take(const Json& json, std::optional<Value>& out) {
  Value value{};
  const bool taken = Take(json, value);
  if (taken) out = std::move(value);
  return taken;
}
template <typename Value>
bool Take(const Json& json, std::map<std::string, Value>& out) {
  if (!json.is_object()) return false;
  for (const auto& item : json.items()) {
    Value value{};
    if (item.value().is_number() && Take(item.value(), value)) out[item.key()] = value;
  }
  return true;
}
bool Take(const Json& json, std::vector<std::int64_t>& out) {
  if (!json.is_array()) return false;
  for (const Json& item : json) {
    if (item.is_number_integer()) out.push_back(item.get<std::int64_t>());
  }
  return true;
}

template <typename Event>
Json Write(const Event& event) {
  Json json = Json::object();
  std::apply([&](const auto&... field) { (Put(json, field.name, event.*field.member), ...); }, Fields<Event>::kAll);
  return json;
}

template <typename Event>
Event Read(const Json& fields) {
  Event event;
  if (!fields.is_object()) return event;
  const auto take = [&](const auto& field) {
    const auto found = fields.find(field.name);
    if (found != fields.end()) Take(*found, event.*field.member);
  };
  std::apply([&](const auto&... field) { (take(field), ...); }, Fields<Event>::kAll);
  return event;
}

template <std::size_t kIndex = 0>
std::optional<EventBody> DecodeAny(std::string_view type, const Json& fields) {
  if constexpr (kIndex < std::variant_size_v<EventBody>) {
    using Event = std::variant_alternative_t<kIndex, EventBody>;
    if (type == Event::kType) return Read<Event>(fields);
    return DecodeAny<kIndex + 1>(type, fields);
  }
  return std::nullopt;
}

}  // namespace

const char* TypeOf(const EventBody& body) {
  return std::visit([](const auto& event) { return std::remove_cvref_t<decltype(event)>::kType; }, body);
}

bool IsEventType(std::string_view type) { return Decode(type, Json::object()).has_value(); }

Json Encode(const EventBody& body) {
  return std::visit([](const auto& event) { return Write(event); }, body);
}

std::optional<EventBody> Decode(std::string_view type, const Json& fields) { return DecodeAny(type, fields); }
StepEvent DecodeStep(const Json& fields) { return Read<StepEvent>(fields); }
EvalEvent DecodeEval(const Json& fields) { return Read<EvalEvent>(fields); }
Runtime DecodeRuntime(const Json& fields) { return Read<Runtime>(fields); }

template <typename Event, typename Value>
const char* NameOf(std::optional<Value> Event::* field) {
  const char* name = nullptr;
  const auto look_at = [&](const auto& listed) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(listed)>, Field<Event, std::optional<Value>>>) {
      if (listed.member == field) name = listed.name;
    }
  };
  std::apply([&](const auto&... listed) { (look_at(listed), ...); }, Fields<Event>::kAll);
  CHECK(name != nullptr);
  return name;
}
template const char* NameOf(std::optional<std::int64_t> StepEvent::*);
template const char* NameOf(std::optional<double> StepEvent::*);
template const char* NameOf(std::optional<double> EvalEvent::*);

const std::map<std::string, std::int64_t>& LaunchesOf(const EventBody& body) {
  static const std::map<std::string, std::int64_t>& none = *new std::map<std::string, std::int64_t>;
  return std::visit(
      [](const auto& event) -> const std::map<std::string, std::int64_t>& {
        if constexpr (requires { event.launches; }) return event.launches;
        return none;
      },
      body);
}

}  // namespace nibble::jobs
