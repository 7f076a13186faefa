#pragma once
#include "server/base/json.h"
#include "server/jobs/journal.h"

namespace nibble::jobs {

// Takes a journal line into a job's progress (JobRecord::progress). Pure. Keys: "step", "max_steps", "epoch" (passes
// done, with their fraction where the trainer tells it), "percent",
// "eta_s", "tokens" and "trainable_tokens" (sums over the steps run), "tokens_per_s" (tokens over time in steps),
// "steps_ms" (that time), "loss", "lr", "grad_norm", "step_ms", "eval_loss", "eval_loss_int8" or "eval_loss_ternary", "peak_memory_bytes",
// "kernel_launches_per_step", "update_time"; and as they came "latest_step", "latest_eval", "int8_eval" or "ternary_eval".
void UpdateProgress(base::Json& progress, const JournalLine& line);

// At success: step = max_steps, and the figures of the outcome; the sums stay.
void FinishProgress(base::Json& progress, const base::Json& final);

}  // namespace nibble::jobs
