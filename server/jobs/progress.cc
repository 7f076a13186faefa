#include "server/jobs/progress.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <variant>

#include "server/jobs/event.h"

namespace nibble::jobs {

using base::Json;

namespace {

double Number(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>() : 0.0;
}

void Set(Json& progress, const char* key, const std::optional<std::int64_t>& value) {
  if (value.has_value()) progress[key] = *value;
}
// Keeps the last number: a NaN says nothing about the progress.
void Set(Json& progress, const char* key, const std::optional<double>& value) {
  if (value.has_value() && !std::isnan(*value)) progress[key] = *value;
}

// Adds to a sum that stays an integer.
void Add(Json& progress, const char* key, const std::optional<std::int64_t>& value) {
  if (value.has_value()) progress[key] = static_cast<std::int64_t>(Number(progress, key)) + *value;
}

void Highest(Json& progress, const char* key, const std::optional<std::int64_t>& value) {
  if (value.has_value() && static_cast<double>(*value) > Number(progress, key)) progress[key] = *value;
}

void Derive(Json& progress) {
  const double step = Number(progress, NameOf(&StepEvent::step)),
               max_steps = Number(progress, NameOf(&StepEvent::max_steps));
  if (max_steps > 0) progress["percent"] = std::min(100.0, 100.0 * step / max_steps);
  if (Number(progress, "steps_ms") > 0) {
    progress[NameOf(&StepEvent::tokens_per_s)] =
        1000.0 * Number(progress, NameOf(&StepEvent::tokens)) / Number(progress, "steps_ms");
  }
  const double step_ms = Number(progress, NameOf(&StepEvent::step_ms));
  if (max_steps > 0 && step_ms > 0) progress["eta_s"] = std::max(0.0, max_steps - step) * step_ms / 1000.0;
}

// A figure that comes from a field of a step has the key of that field.
void TakeStep(Json& progress, const StepEvent& step) {
  const auto set = [&](auto field) { Set(progress, NameOf(field), step.*field); };
  const auto add = [&](auto field) { Add(progress, NameOf(field), step.*field); };
  set(&StepEvent::step);
  set(&StepEvent::max_steps);
  // "epoch" of a step counts whole passes; used if the trainer reports no fraction.
  Set(progress, NameOf(&StepEvent::epoch), step.epochs_done.has_value() ? step.epochs_done : step.epoch);
  set(&StepEvent::loss);
  set(&StepEvent::lr);
  set(&StepEvent::grad_norm);
  set(&StepEvent::step_ms);
  add(&StepEvent::tokens);
  add(&StepEvent::trainable_tokens);
  progress["steps_ms"] = Number(progress, "steps_ms") + step.step_ms.value_or(0);
  Set(progress, "kernel_launches_per_step", step.kernel_launches);
  // A trainer that reports no step time reports its speed.
  if (!step.step_ms.has_value()) set(&StepEvent::tokens_per_s);
  Highest(progress, NameOf(&StepEvent::peak_memory_bytes), step.peak_memory_bytes);
}

}  // namespace

void UpdateProgress(Json& progress, const JournalLine& line) {
  const std::optional<EventBody> body = Decode(line.type, line.body);
  if (!body.has_value()) return;
  if (const auto* state = std::get_if<StateEvent>(&*body)) {
    Set(progress, NameOf(&StepEvent::step), state->step);
    Set(progress, NameOf(&StepEvent::max_steps), state->max_steps);
    // Training begins at the step of a checkpoint, or at 0. If that checkpoint is another job's, saved_step is the step
    // of the job's own newest one.
    if (state->step.has_value())
      progress["checkpoint_step"] = std::max(static_cast<std::int64_t>(Number(progress, "checkpoint_step")),
                                             state->saved_step.value_or(*state->step));
    if (const auto runtime = line.body.find("runtime"); runtime != line.body.end()) progress["runtime"] = *runtime;
  } else if (const auto* step = std::get_if<StepEvent>(&*body)) {
    TakeStep(progress, *step);
    progress["latest_step"] = line.body;
  } else if (const auto* eval = std::get_if<EvalEvent>(&*body)) {
    // An evaluation of the served form is stored under the name of its format. Any other is of the model in training.
    const bool served = eval->what == "int8" || eval->what == "ternary";
    const std::string loss = NameOf(&EvalEvent::eval_loss);
    if (eval->eval_loss.has_value()) progress[served ? loss + "_" + eval->what : loss] = *eval->eval_loss;
    progress[served ? eval->what + "_eval" : "latest_eval"] = line.body;
    Highest(progress, NameOf(&StepEvent::peak_memory_bytes), eval->peak_memory_bytes);
  } else {
    if (const auto* saved = std::get_if<CheckpointEvent>(&*body)) Set(progress, "checkpoint_step", saved->step);
    return;
  }
  progress["update_time"] = line.time;
  Derive(progress);
}

void FinishProgress(Json& progress, const Json& final) {
  for (const auto& item : final.items()) {
    // The trainer counts tokens of the steps that made the model; the progress counts those of all steps that were run.
    if (item.key() == NameOf(&StepEvent::tokens)) continue;
    if (item.value().is_number()) progress[item.key()] = item.value();
  }
  const char* const max_steps = NameOf(&StepEvent::max_steps);
  if (Number(progress, max_steps) > 0) progress[NameOf(&StepEvent::step)] = progress[max_steps];
  Derive(progress);
  progress["eta_s"] = 0.0;
}

}  // namespace nibble::jobs
