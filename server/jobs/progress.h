#pragma once
#include "server/base/json.h"
#include "server/jobs/journal.h"

namespace nibble::jobs {

// Updates a job's progress (StoredJob::progress) from a journal line. Pure. Keys: "step", "max_steps", "epoch" (passes
// done, with the fraction if the trainer reports it), "percent", "eta_s", "tokens" and "trainable_tokens" (sums over
// the steps run), "tokens_per_s" (tokens over time in steps), "steps_ms" (that time), "loss", "lr", "grad_norm",
// "step_ms", "eval_loss", "eval_loss_int8" or "eval_loss_ternary", "peak_memory_bytes", "kernel_launches_per_step",
// "update_time"; "checkpoint_step" (of the last checkpoint; 0: none); and, as received, "runtime", "latest_step",
// "latest_eval", "int8_eval" or "ternary_eval".
void UpdateProgress(base::Json& progress, const JournalLine& line);

// At success: sets step to max_steps and takes the outcome's figures except "tokens".
void FinishProgress(base::Json& progress, const base::Json& final);

}  // namespace nibble::jobs
