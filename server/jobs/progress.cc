#include "server/jobs/progress.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace nibble::jobs {

using base::Json;

namespace {

double Number(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>() : 0.0;
}

void Copy(const Json& from, std::initializer_list<const char*> keys, Json& to) {
  for (const char* key : keys) {
    const auto it = from.find(key);
    if (it != from.end() && it->is_number()) to[key] = *it;
  }
}

// Adds to a sum that stays an integer.
void Add(Json& progress, const char* key, const Json& line) {
  const auto it = line.find(key);
  if (it == line.end() || !it->is_number_integer()) return;
  progress[key] = static_cast<std::int64_t>(Number(progress, key)) + it->get<std::int64_t>();
}

void Highest(Json& progress, const char* key, const Json& line) {
  const auto it = line.find(key);
  if (it != line.end() && it->is_number() && Number(line, key) > Number(progress, key)) progress[key] = *it;
}

void Derive(Json& progress) {
  const double step = Number(progress, "step"), max_steps = Number(progress, "max_steps");
  if (max_steps > 0) progress["percent"] = std::min(100.0, 100.0 * step / max_steps);
  if (Number(progress, "steps_ms") > 0) {
    progress["tokens_per_s"] = 1000.0 * Number(progress, "tokens") / Number(progress, "steps_ms");
  }
  if (max_steps > 0 && Number(progress, "step_ms") > 0) {
    progress["eta_s"] = std::max(0.0, max_steps - step) * Number(progress, "step_ms") / 1000.0;
  }
}

}  // namespace

void UpdateProgress(Json& progress, const JournalLine& line) {
  const Json& body = line.body;
  if (line.type == "state") {
    Copy(body, {"step", "max_steps"}, progress);
    if (const auto runtime = body.find("runtime"); runtime != body.end()) progress["runtime"] = *runtime;
  } else if (line.type == "step") {
    Copy(body, {"step", "max_steps", "epoch", "loss", "lr", "grad_norm", "step_ms"}, progress);
    // "epoch" counts whole passes; used if the trainer reports no fraction.
    if (const auto done = body.find("epochs_done"); done != body.end() && done->is_number()) progress["epoch"] = *done;
    Add(progress, "tokens", body);
    Add(progress, "trainable_tokens", body);
    progress["steps_ms"] = Number(progress, "steps_ms") + Number(body, "step_ms");
    if (body.contains("kernel_launches")) progress["kernel_launches_per_step"] = body["kernel_launches"];
    // A trainer that reports no step time reports its speed.
    if (!body.contains("step_ms")) Copy(body, {"tokens_per_s"}, progress);
    Highest(progress, "peak_memory_bytes", body);
    progress["latest_step"] = body;
  } else if (line.type == "eval") {
    // Stored under the format if the served form was evaluated; otherwise it is of the model in training.
    const auto what = body.find("what");
    const bool served = what != body.end() && (*what == "int8" || *what == "ternary");
    const std::string format = served ? what->get<std::string>() : "";
    if (body.contains("eval_loss")) progress[served ? "eval_loss_" + format : "eval_loss"] = body["eval_loss"];
    progress[served ? format + "_eval" : "latest_eval"] = body;
    Highest(progress, "peak_memory_bytes", body);
  } else {
    return;
  }
  progress["update_time"] = line.time;
  Derive(progress);
}

void FinishProgress(Json& progress, const Json& final) {
  for (const auto& item : final.items()) {
    // The trainer counts tokens of the steps that made the model; the progress counts those of all steps that were run.
    if (item.key() == "tokens") continue;
    if (item.value().is_number()) progress[item.key()] = item.value();
  }
  if (Number(progress, "max_steps") > 0) progress["step"] = progress["max_steps"];
  Derive(progress);
  progress["eta_s"] = 0.0;
}

}  // namespace nibble::jobs
