// The events of a job: what its trainer writes to the journal (journal.h), and what the server adds. Each kind is a
// struct with one list of its fields in event.cc, from which the JSON form is written and read.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/base/json.h"

namespace nibble::jobs {

// In all these structs, empty texts, lists, maps and unset values are absent from the JSON form. NaN is null there.
// The initializers let callers name only some fields.

// Where an attempt runs.
struct Runtime {
  std::string binary{};  // digest or version of the trainer
  std::string isa{};     // "avx2"
  std::optional<std::int64_t> threads{};
};

// A change of the job's state. The trainer writes RUNNING when training begins, once per attempt.
struct StateEvent {
  static constexpr char kType[] = "state";
  std::string state{}, from{};                      // names of job states
  std::string reason{}, message{};                  // why, if it is not obvious
  std::optional<std::int64_t> step{}, max_steps{};  // RUNNING: steps done (0 or the checkpoint's), and steps of the run
  std::optional<std::int64_t> saved_step{};         // RUNNING: step of the job's own newest checkpoint, if not `step`
  std::optional<std::int64_t> resumed_step{};       // RUNNING: a copy of `step` that the server adds
  std::optional<double> retry_in_s{};               // QUEUED: seconds before the next attempt
  std::optional<Runtime> runtime{};                 // RUNNING
};

// One optimizer step.
struct StepEvent {
  static constexpr char kType[] = "step";
  std::optional<std::int64_t> step{}, max_steps{};
  std::optional<double> loss{}, lr{}, grad_norm{};  // loss in nats per token; grad_norm before clipping
  std::optional<double> epoch{};                    // whole passes over the data
  std::optional<double> epochs_done{};              // passes, with the done share of the current one
  std::optional<std::int64_t> tokens{}, trainable_tokens{};
  std::optional<double> tokens_per_s{}, step_ms{};
  std::optional<std::int64_t> kernel_launches{}, peak_memory_bytes{};
  std::map<std::string, std::int64_t> launches{};  // by kernel, since the last event that has them
};

struct EvalEvent {
  static constexpr char kType[] = "eval";
  std::optional<std::int64_t> step{};
  std::optional<double> eval_loss{};  // nats per token
  std::optional<bool> best{};         // lower than all before it
  std::optional<std::int64_t> tokens{};
  std::optional<double> duration_ms{};
  std::optional<std::int64_t> peak_memory_bytes{};
  std::string what{};  // "int8", "ternary": the artifact that will be served; "": the model in training
  std::map<std::string, std::int64_t> launches{};
};

struct CheckpointEvent {
  static constexpr char kType[] = "checkpoint";
  std::optional<std::int64_t> step{};
  std::string directory{};  // relative to the attempt's directory
  std::optional<std::int64_t> bytes{};
  std::optional<double> duration_ms{};
  std::string digest{};
  std::map<std::string, double> metrics{};  // of its step: "loss", "eval_loss" if it was evaluated
};

// The trained model was published.
struct ModelEvent {
  static constexpr char kType[] = "model";
  std::string model{}, format{}, digest{};
  std::optional<std::int64_t> bytes{};
};

struct WarningEvent {
  static constexpr char kType[] = "warning";
  std::string reason{}, message{};
  std::vector<std::int64_t> row_ids{};  // lines of the dataset, from 1
};

struct LogEvent {
  static constexpr char kType[] = "log";
  std::string message{};
  std::map<std::string, std::int64_t> launches{};
};

using EventBody = std::variant<StateEvent, StepEvent, EvalEvent, CheckpointEvent, ModelEvent, WarningEvent, LogEvent>;

// The kType of the event, such as "step".
const char* TypeOf(const EventBody& body);
bool IsEventType(std::string_view type);
base::Json Encode(const EventBody& body);
// Ignores a field whose value has the wrong type, because an old journal or another trainer must not stop a job.
// nullopt for an unknown type.
std::optional<EventBody> Decode(std::string_view type, const base::Json& fields);
// Decode of a known type.
StepEvent DecodeStep(const base::Json& fields);
EvalEvent DecodeEval(const base::Json& fields);
Runtime DecodeRuntime(const base::Json& fields);

// The key of an optional field in the JSON form, such as "grad_norm". For the numbers of StepEvent, and the real
// numbers of EvalEvent.
template <typename Event, typename Value>
const char* NameOf(std::optional<Value> Event::* field);

// The launches that the event reports; empty for an event without launches.
const std::map<std::string, std::int64_t>& LaunchesOf(const EventBody& body);

}  // namespace nibble::jobs
