#include "server/trainer/attempt_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_join.h"
#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/process_memory.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/convert.h"
#include "server/data/evaluate.h"
#include "server/jobs/event.h"
#include "server/model/forward.h"
#include "server/model/replay.h"
#include "server/store/published_directory.h"
#include "server/trainer/attempt_data.h"
#include "server/trainer/checkpoint.h"
#include "server/trainer/optimizer.h"
#include "server/trainer/recipe.h"
#include "server/trainer/schedule.h"
#include "server/trainer/serving_weights.h"

namespace nibble::trainer {
namespace {

using base::Json;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

absl::Status NanLoss(const std::string& where) {
  return base::WithReason(absl::InvalidArgumentError(where), "NAN_LOSS");
}

class AttemptRun {
 public:
  explicit AttemptRun(const AttemptContext& context) : context_(context), spec_(context.order.spec) {}

  absl::StatusOr<jobs::Outcome> Run() {
    absl::StatusOr<jobs::Outcome> outcome = LoadTrainAndPublish();
    if (absl::IsCancelled(outcome.status()) && Stopping()) return Interrupt();
    return outcome;
  }

 private:
  // Cancelled if Stopping(). The state is then the one after progress_.step complete steps.
  absl::StatusOr<jobs::Outcome> LoadTrainAndPublish() {
    NIBBLE_RETURN_IF_ERROR(MakeModel());
    NIBBLE_RETURN_IF_ERROR(LoadInputs());
    NIBBLE_RETURN_IF_ERROR(Resume());
    const RunIdentity& where = inputs_.identity;
    NIBBLE_RETURN_IF_ERROR(Write(jobs::StateEvent{
        .state = "RUNNING",
        .step = progress_.step,
        .max_steps = max_steps_,
        // The checkpoint that the job continues is another job's: it has saved none of its own.
        .saved_step = continues_other_job_ ? std::optional<std::int64_t>(0) : std::nullopt,
        .runtime = jobs::Runtime{.binary = where.version, .isa = where.isa, .threads = where.threads}}));
    NIBBLE_RETURN_IF_ERROR(Train());
    return Publish();
  }

  // Called in all long work (base/cancelled.h): for every linear of a pass, every layer of an evaluation, every tensor
  // and MiB of a load, a conversion or a hash. Each call also shows the server that the trainer is alive: a trainer
  // that hangs makes no calls.
  bool Stopping() {
    ShowAlive();
    return may_stop_ && (context_.terminated() || IsOver());
  }

  // The server has given up this attempt, and another may run: write nothing more.
  bool IsOver() const { return context_.reporter.fenced() || !holds_claim_; }

  void ShowAlive() {
    const double now = Seconds();
    if (now - shown_at_ < context_.order.show_alive_every_s) return;
    shown_at_ = now;
    holds_claim_ = holds_claim_ && context_.claim.held();
    if (!holds_claim_) return;
    // Ignored: a full disk may have room later, and if it has none, the next write to the journal fails.
    jobs::ShowAlive(context_.files, context_.directory, ++shown_).IgnoreError();
  }

  absl::Status Train() {
    if (EvaluationIsDue()) NIBBLE_RETURN_IF_ERROR(EvaluateNow());
    while (progress_.step < max_steps_) {
      NIBBLE_RETURN_IF_ERROR(Step());
      if (EvaluationIsDue()) NIBBLE_RETURN_IF_ERROR(EvaluateNow());
      if (SaveIsDue()) NIBBLE_RETURN_IF_ERROR(Save());
      NIBBLE_RETURN_IF_ERROR(ServeCheckpointRequest());
      if (Stopping()) return absl::CancelledError("stop requested");
    }
    return EvaluateNow();
  }

  // A request arrives in a file and by the report stream, in any order: on a network file system the file may appear
  // after the checkpoint that it asks for. Each id is served once; a request without an id, whenever its file exists.
  absl::Status ServeCheckpointRequest() {
    const std::optional<std::string> in_file = jobs::CheckpointRequest(context_.files, context_.directory);
    const std::string by_stream = context_.reporter.checkpoint_request();
    const auto is_new = [this](const std::string& id) { return !served_requests_.contains(id); };
    const bool wanted =
        (in_file.has_value() && (in_file->empty() || is_new(*in_file))) || (!by_stream.empty() && is_new(by_stream));
    if (wanted && progress_.step > saved_step_) NIBBLE_RETURN_IF_ERROR(Save());
    if (in_file.has_value()) served_requests_.insert(*in_file);
    if (!by_stream.empty()) served_requests_.insert(by_stream);
    if (!wanted && !in_file.has_value()) return absl::OkStatus();
    return jobs::ClearCheckpointRequest(context_.files, context_.directory);
  }

  // Before the first step, and every eval_every steps. The evaluation after the last step always runs. An interrupted
  // evaluation is due again when the job resumes.
  bool EvaluationIsDue() const {
    if (!inputs_.has_eval || progress_.step >= max_steps_ || progress_.evaluated_step == progress_.step) return false;
    return progress_.step == 0 || (spec_.run.eval_every > 0 && progress_.step % spec_.run.eval_every == 0);
  }

  // Every save_every steps, and after the last step: a crash in the final evaluation or while publishing then repeats
  // no step. Never if save_every is 0.
  bool SaveIsDue() const {
    if (spec_.run.save_every == 0) return false;
    return progress_.step == max_steps_ || progress_.step % spec_.run.save_every == 0;
  }

  absl::Status Write(const jobs::EventBody& event) {
    NIBBLE_ASSIGN_OR_RETURN(std::string line, context_.journal.Append(jobs::TypeOf(event), jobs::Encode(event)));
    context_.reporter.Send(std::move(line));
    return absl::OkStatus();
  }

  absl::Status Log(const std::string& message) { return Write(jobs::LogEvent{.message = message}); }

  absl::Status MakeModel() {
    const RecipeContext context = {.order = context_.order,
                                   .directory = context_.directory,
                                   .files = context_.files,
                                   .stream = context_.stream,
                                   .log = [this](const std::string& message) { return Log(message); },
                                   .warn =
                                       [this](const std::string& reason, const std::string& message) {
                                         return Write(jobs::WarningEvent{.reason = reason, .message = message});
                                       },
                                   .cancelled = stopping_};
    NIBBLE_RETURN_IF_ERROR(store::Verify(context_.files, context_.order.base_model_directory, stopping_).status());
    NIBBLE_ASSIGN_OR_RETURN(recipe_, MakeRecipe(context, context_.recipes));
    model_ = &recipe_->model();
    for (const Parameter& parameter : model_->parameters()) {
      const TensorRef& value = parameter.value;
      moments_.push_back(optimizer_.MakeMoments(value.count));
      NIBBLE_RETURN_IF_ERROR(optimizer_.Check(parameter.name, value, parameter.grad, moments_.back()));
    }
    return absl::OkStatus();
  }

  absl::Status LoadInputs() {
    NIBBLE_ASSIGN_OR_RETURN(inputs_,
                            LoadAttemptData(context_.files, context_.order, *recipe_, context_.stream, stopping_));
    NIBBLE_RETURN_IF_ERROR(Log(base::StrCat(
        "training set: ", inputs_.train.num_rows, " rows, ", inputs_.train.examples.size(), " examples, ",
        inputs_.train.num_tokens, " tokens of which ", inputs_.train.num_trained, " are trained; ",
        inputs_.train.truncated.count, " truncated, ", inputs_.train.dropped.count, " dropped",
        spec_.eval_fraction ? base::StrCat("; ", inputs_.eval.num_rows, " of the rows held out for evaluation")
                            : std::string())));
    NIBBLE_RETURN_IF_ERROR(WriteRowWarnings(inputs_.train, ""));
    NIBBLE_RETURN_IF_ERROR(WriteRowWarnings(inputs_.eval, data::EvaluationSet(spec_.eval_dataset)));
    loader_ = MakeLoader(spec_, inputs_);
    const std::int64_t rows_in_epoch = loader_->RowsInEpoch(0);
    max_steps_ = jobs::NumSteps(spec_.run, rows_in_epoch);
    max_micro_batches_ = jobs::NumMicroBatches(spec_.run, rows_in_epoch);
    return absl::OkStatus();
  }

  absl::Status WriteRowWarnings(const data::Dataset& data, const std::string& set) {
    for (const data::RowWarning& warning : data::RowWarnings(data, spec_.data.max_seq_len, set)) {
      NIBBLE_RETURN_IF_ERROR(
          Write(jobs::WarningEvent{.reason = warning.reason, .message = warning.message, .row_ids = warning.rows}));
    }
    return absl::OkStatus();
  }

  // Continues after the job's own newest checkpoint, or begins with what the job starts from.
  absl::Status Resume() {
    const jobs::AttemptOrder& order = context_.order;
    if (!order.resume_checkpoint_directory.empty()) {
      NIBBLE_RETURN_IF_ERROR(LoadProgress(order.resume_checkpoint_directory, CheckpointOf::kThisJob));
      loader_->Seek(progress_.cursor);
      return Log(base::StrCat("resumed at step ", progress_.step));
    }
    switch (order.start.kind) {
      case jobs::StartOrder::Kind::kBase: return absl::OkStatus();
      case jobs::StartOrder::Kind::kResume: return ResumeOtherJob(order.start);
      case jobs::StartOrder::Kind::kWeights:
        NIBBLE_RETURN_IF_ERROR(LoadWeights(context_.files, order.start.directory, inputs_.identity.base_digest,
                                           model_->parameters(), stopping_));
        break;
      case jobs::StartOrder::Kind::kAdapter:
        NIBBLE_RETURN_IF_ERROR(LoadAdapterWeights(context_.files, order.start.directory, inputs_.identity.base_digest,
                                                  model_->parameters(), stopping_));
        break;
    }
    NIBBLE_RETURN_IF_ERROR(model_->Refresh());
    return Log(base::StrCat("initial weights taken from ", order.start.name));
  }

  absl::Status ResumeOtherJob(const jobs::StartOrder& start) {
    continues_other_job_ = true;
    NIBBLE_RETURN_IF_ERROR(LoadProgress(start.directory, CheckpointOf::kOtherJob));
    if (start.same_rows) {
      loader_->Seek(progress_.cursor);
    } else {
      progress_.cursor = loader_->cursor();
      NIBBLE_RETURN_IF_ERROR(Write(
          jobs::WarningEvent{.reason = "DATA_CHANGED",
                             .message = base::StrCat("the rows or their order differ from those of the job of ",
                                                     start.name, ", so this job reads its data from the beginning")}));
    }
    if (!start.same_eval) {  // losses on other rows cannot be compared
      progress_.evaluated_step = -1;
      progress_.best_eval_loss = TrainingProgress().best_eval_loss;
      progress_.metrics.erase("eval_loss");
    }
    return Log(base::StrCat("continues ", start.name, " after step ", progress_.step));
  }

  absl::Status LoadProgress(const std::string& directory, CheckpointOf whose) {
    NIBBLE_ASSIGN_OR_RETURN(progress_, LoadCheckpoint(context_.files, directory, inputs_.identity, model_->parameters(),
                                                      moments_, stopping_, whose));
    if (!progress_.differences.empty() && !spec_.run.allow_inexact_resume) {
      return base::WithReason(absl::FailedPreconditionError(base::StrCat(
                                  "the checkpoint of step ", progress_.step, " was made under other conditions: ",
                                  absl::StrJoin(progress_.differences, "; "), "; run.allow_inexact_resume is false")),
                              "RESUMED_ELSEWHERE");
    }
    saved_step_ = progress_.step;  // also of another job: an attempt that saves nothing starts there again
    for (const std::string& difference : progress_.differences) {
      NIBBLE_RETURN_IF_ERROR(Write(jobs::WarningEvent{
          .reason = "RESUMED_ELSEWHERE",
          .message = base::StrCat(difference, ": the bits may differ from those of an uninterrupted run")}));
    }
    return model_->Refresh();
  }

  // One optimizer step. Cancelled if a stop was requested in the middle; then only gradients have changed.
  absl::Status Step() {
    const double began = Seconds();
    const auto launches_before = context_.stream.launches->total();
    // Draws all micro-batches of the step first: the loss is a mean over the tokens of the step, not a mean of means.
    std::vector<data::MicroBatch> batches;
    std::int64_t tokens = 0;
    std::int64_t trained = 0;
    for (std::int64_t i = 0; i < spec_.run.grad_accum; ++i) {
      // In a run by epochs, the last step ends with the last epoch.
      if (i > 0 && max_micro_batches_.has_value() && progress_.micro_batches + i >= *max_micro_batches_) break;
      batches.push_back(loader_->Next(spec_.run.micro_batch));
      tokens += static_cast<std::int64_t>(batches.back().tokens.size());
      trained += batches.back().num_trained;
    }
    model_->BeginStep(progress_.step);
    model_->ZeroGrad(context_.stream);
    double loss_sum = 0;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const absl::StatusOr<double> loss = model_->ForwardBackward(
          batches[i], 1.0 / static_cast<double>(trained), static_cast<std::uint64_t>(progress_.micro_batches) + i);
      if (absl::IsCancelled(loss.status())) loader_->Seek(progress_.cursor);
      if (!loss.ok()) return loss.status();
      loss_sum += *loss;
    }
    const double loss = loss_sum / static_cast<double>(trained);
    std::vector<TensorRef> gradients;
    for (const Parameter& parameter : model_->parameters()) gradients.push_back(parameter.grad);
    const double grad_norm = GlobalNorm(gradients, context_.stream);
    if (!std::isfinite(loss) || !std::isfinite(grad_norm)) {
      return NanLoss(base::StrCat("step ", progress_.step + 1, ": loss ", loss, ", gradient norm ", grad_norm));
    }
    if (spec_.optim.max_grad_norm > 0 && grad_norm > spec_.optim.max_grad_norm) {
      const auto factor = static_cast<float>(spec_.optim.max_grad_norm / grad_norm);
      for (Parameter& parameter : model_->parameters()) Scale(parameter.grad, factor, context_.stream);
    }
    const double lr = LearningRate(spec_.optim, progress_.step, max_steps_);
    auto& parameters = model_->parameters();
    Int8Buffers buffers;  // until the end of the updates: the next forward pass needs the memory
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      ShowAlive();
      const Parameter& parameter = parameters[i];
      const absl::Status done = optimizer_.Step(progress_.step + 1, lr * parameter.lr_factor, parameter.value,
                                                parameter.grad, moments_[i], context_.stream,
                                                {.seed = static_cast<std::uint64_t>(spec_.run.seed),
                                                 .tensor = i,
                                                 .to_nearest = parameter.to_nearest,
                                                 .one_scale = parameter.one_scale},
                                                &buffers);
      if (absl::IsInvalidArgument(done)) {  // a new value is not finite
        return NanLoss(
            base::StrCat("step ", progress_.step + 1, ": ", parameter.name, ": ", base::ToStd(done.message())));
      }
      NIBBLE_RETURN_IF_ERROR(done);
    }
    NIBBLE_RETURN_IF_ERROR(model_->Refresh());
    ++progress_.step;
    progress_.micro_batches += static_cast<std::int64_t>(batches.size());
    progress_.tokens += tokens;
    progress_.trained_tokens += trained;
    progress_.cursor = loader_->cursor();
    progress_.metrics = {{"loss", loss}};  // without the eval_loss of an earlier step
    const double took = Seconds() - began;
    const auto& [epoch, taken] = progress_.cursor;
    const auto examples = static_cast<std::int64_t>(inputs_.train.examples.size());
    const double share = static_cast<double>(taken) / static_cast<double>(examples);  // of this epoch
    return Write(jobs::StepEvent{
        .step = progress_.step,
        .loss = loss,
        .lr = lr,
        .grad_norm = grad_norm,
        .epoch = static_cast<double>(epoch + (taken >= examples ? 1 : 0)),
        .epochs_done = static_cast<double>(epoch) + share,
        .tokens = tokens,
        .trainable_tokens = trained,
        .tokens_per_s = static_cast<double>(tokens) / took,
        .step_ms = took * 1000.0,
        .kernel_launches = static_cast<std::int64_t>(context_.stream.launches->total() - launches_before),
        .peak_memory_bytes = static_cast<std::int64_t>(base::PeakResidentBytes()),
        .launches = TakeLaunches()});
  }

  // Launches by kernel since the last call. The sum over all events that carry them is the total.
  std::map<std::string, std::int64_t> TakeLaunches() {
    std::map<std::string, std::int64_t> launches;
    for (const auto& [kernel, count] : context_.stream.launches->Snapshot()) {
      const std::uint64_t added = count - reported_launches_[kernel];
      if (added > 0) launches[kernel] = static_cast<std::int64_t>(added);
      reported_launches_[kernel] = count;
    }
    return launches;
  }

  // Evaluates `weights`, writes the event and returns the loss. `what`: "" for the model as it is trained, or the name
  // of its served format.
  absl::StatusOr<double> EvaluateAs(const std::string& what, const model::DecoderWeights& weights) {
    const double began = Seconds();
    NIBBLE_ASSIGN_OR_RETURN(const data::Evaluation result,
                            data::Evaluate(recipe_->config(), weights, inputs_.eval.examples, {}, context_.stream,
                                           [&](std::int64_t) { return !Stopping(); }));
    const bool trained = what.empty();
    if (!std::isfinite(result.loss)) {
      return NanLoss(base::StrCat("evaluation", trained ? "" : " as ", what, " after step ", progress_.step, ": loss ",
                                  result.loss));
    }
    const jobs::EvalEvent event{.step = progress_.step,
                                .eval_loss = result.loss,
                                // The served form is evaluated once, so its only loss is its best.
                                .best = !trained || result.loss < progress_.best_eval_loss,
                                .tokens = result.tokens,
                                .duration_ms = (Seconds() - began) * 1000.0,
                                .what = what,
                                .launches = TakeLaunches()};
    if (trained) progress_.best_eval_loss = std::min(progress_.best_eval_loss, result.loss);
    NIBBLE_RETURN_IF_ERROR(Write(event));
    return result.loss;
  }

  absl::Status EvaluateNow() {
    if (!inputs_.has_eval) return absl::OkStatus();
    NIBBLE_ASSIGN_OR_RETURN(const model::DecoderWeights* weights, MakeServingWeights(*model_));
    NIBBLE_ASSIGN_OR_RETURN(last_eval_loss_, EvaluateAs("", *weights));
    progress_.metrics["eval_loss"] = *last_eval_loss_;
    progress_.evaluated_step = progress_.step;
    return absl::OkStatus();
  }

  absl::Status Save() {
    const double began = Seconds();
    auto written = SaveCheckpoint(context_.files, context_.directory, progress_, inputs_.identity, model_->parameters(),
                                  moments_, recipe_->adapter(), alive_);
    if (!written.ok()) {
      // The attempt ends with this error. If the journal has no room either, only the end of the attempt reports it.
      Write(jobs::WarningEvent{.reason = "CHECKPOINT_FAILED", .message = std::string(written.status().message())})
          .IgnoreError();
      return written.status();
    }
    const store::CheckpointInfo saved = *std::move(written);
    const std::string relative = saved.directory.substr(context_.directory.size() + 1);
    NIBBLE_RETURN_IF_ERROR(Write(jobs::CheckpointEvent{.step = saved.step,
                                                       .directory = relative,
                                                       .bytes = static_cast<std::int64_t>(saved.bytes),
                                                       .duration_ms = (Seconds() - began) * 1000.0,
                                                       .digest = saved.digest,
                                                       .metrics = progress_.metrics}));
    saved_step_ = progress_.step;
    return store::PruneCheckpoints(context_.files, context_.directory, std::max<std::int64_t>(1, spec_.run.keep_last));
  }

  // The command behind the stop, from the report stream or from control.json, which the trainer may not see yet. A
  // pause may have become a cancel since, never the reverse.
  absl::StatusOr<jobs::Control> StopControl() const {
    auto in_file = jobs::ReadControl(context_.files, context_.directory);
    const bool says_why = in_file.ok() && *in_file != jobs::Control::kPreempt;
    // SIGTERM may be faster than the stream.
    if (!says_why && !context_.reporter.stop().has_value()) context_.reporter.Ask(absl::Seconds(2));
    const std::optional<jobs::Control> by_stream = context_.reporter.stop();
    const bool cancelled =
        in_file.ok() && (*in_file == jobs::Control::kCancel || *in_file == jobs::Control::kCancelKeeping);
    if (!by_stream.has_value() || cancelled) return in_file;
    return *by_stream;
  }

  absl::StatusOr<jobs::Outcome> Interrupt() {
    jobs::Outcome outcome;
    if (IsOver()) return absl::AbortedError("the server has given up this attempt");
    NIBBLE_ASSIGN_OR_RETURN(const jobs::Control control, StopControl());
    const bool cancelled = control == jobs::Control::kCancel || control == jobs::Control::kCancelKeeping;
    if (control != jobs::Control::kCancel && progress_.step > saved_step_) NIBBLE_RETURN_IF_ERROR(Save());
    if (cancelled) {
      outcome.kind = jobs::Outcome::Kind::kCancelled;
      outcome.exit_code = jobs::kExitOk;
      return outcome;
    }
    outcome.kind = jobs::Outcome::Kind::kPaused;
    outcome.exit_code = jobs::kExitTempFail;
    return outcome;
  }

  // Writes the trained model, and what its served form will give: the loss, and the record of the logits that nibbled
  // must reproduce after `models convert` (docs/numerics.md 10).
  absl::StatusOr<jobs::Outcome> Publish() {
    NIBBLE_ASSIGN_OR_RETURN(store::PendingDirectory output,
                            store::PendingDirectory::Create(context_.files, context_.order.output_directory));
    Json provenance = {{"job_id", context_.order.job_id},
                       {"base_model", spec_.base_model},
                       {"dataset_digest", inputs_.identity.data_digest},
                       {"spec_digest", inputs_.identity.spec_digest},
                       {"step", progress_.step},
                       {"eval_data", jobs::EvalDataJson(spec_)},
                       {"isa", inputs_.identity.isa},
                       {"threads", inputs_.identity.threads},
                       {"code_version", context_.order.nibble_version}};
    if (!spec_.resume_from.empty()) provenance["resume_from"] = spec_.resume_from;
    if (!spec_.warm_start_from.empty()) provenance["warm_start_from"] = spec_.warm_start_from;
    NIBBLE_ASSIGN_OR_RETURN(model::ArtifactInfo info, recipe_->Write(provenance, output.path()));
    jobs::Outcome outcome;
    Json final = {
        {"step", progress_.step}, {"peak_memory_bytes", base::PeakResidentBytes()}, {"digest", info.weights_digest}};
    if (last_eval_loss_.has_value()) final["eval_loss"] = *last_eval_loss_;
    NIBBLE_RETURN_IF_ERROR(EvaluateServed(output.path(), info, final));
    NIBBLE_RETURN_IF_ERROR(output.Commit(stopping_).status());
    NIBBLE_RETURN_IF_ERROR(recipe_->Clean());
    outcome.kind = jobs::Outcome::Kind::kOk;
    outcome.exit_code = jobs::kExitOk;
    outcome.output_directory = context_.order.output_directory;
    outcome.final = std::move(final);
    return outcome;
  }

  // Makes the served form, evaluates it, and stores its digest and its record with the trained model. Removes the
  // served form, unless it is the trained model: `models convert` makes the same one.
  absl::Status EvaluateServed(const std::string& trained_directory, model::ArtifactInfo info, Json& final) {
    const bool is_served = info.format == recipe_->served_format();  // the trained model itself
    // "int8" or "ternary"; for an adapter that is served on an int8 base: "int8".
    const std::string name = model::Name(is_served ? info.weight_format() : recipe_->served_format());
    const std::string directory =
        is_served ? trained_directory : base::TemporaryName(base::JoinPath(context_.directory, name));
    std::string digest = info.weights_digest;
    if (!is_served) {
      NIBBLE_ASSIGN_OR_RETURN(digest, MakeServedForm(trained_directory, directory));
    }
    const data::ExampleList& examples = inputs_.has_eval ? inputs_.eval.examples : inputs_.train.examples;
    std::vector<std::vector<std::int32_t>> sequences;  // of the record: up to 64 tokens of the first two examples
    for (std::size_t i = 0; i < examples.size() && i < 2; ++i) {
      const auto& tokens = examples[i].tokens;
      sequences.emplace_back(tokens.begin(),
                             tokens.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(tokens.size(), 64)));
    }
    NIBBLE_RETURN_IF_ERROR(recipe_->WriteLogprobs(sequences, trained_directory));
    recipe_->Release();
    // If the last step is not saved yet, an attempt that is interrupted from here on saves it, which needs the moments.
    if (saved_step_ == progress_.step) moments_.clear();
    NIBBLE_ASSIGN_OR_RETURN(
        const auto served,
        model::LoadedModel::Load(directory, {.max_positions = spec_.data.max_seq_len, .cancelled = stopping_},
                                 context_.stream));
    if (inputs_.has_eval) {
      NIBBLE_ASSIGN_OR_RETURN(const double loss, EvaluateAs(name, served->weights()));
      final[base::StrCat("eval_loss_", name)] = loss;
    }
    // Without moments no checkpoint can be written, so from here on the attempt may stop only if its last step is
    // saved.
    may_stop_ = saved_step_ == progress_.step;
    moments_.clear();
    final[base::StrCat(name, "_digest")] = digest;
    if (recipe_->predicts_record()) {
      NIBBLE_ASSIGN_OR_RETURN(const model::Record record, recipe_->MakeRecord(*served, sequences));
      if (is_served) {
        NIBBLE_RETURN_IF_ERROR(model::WriteRecord(context_.files, trained_directory, record));
        info.recorded_by = "trainer";
      } else {
        NIBBLE_RETURN_IF_ERROR(base::WriteFileAtomically(
            context_.files, base::JoinPath(trained_directory, model::PredictedRecordFile(recipe_->served_format())),
            model::SerializeRecord(record)));
      }
    }
    info.provenance[base::StrCat(name, "_digest")] = digest;
    NIBBLE_RETURN_IF_ERROR(model::WriteArtifactInfo(context_.files, trained_directory, info));
    NIBBLE_RETURN_IF_ERROR(Write(jobs::LogEvent{.message = base::StrCat("made the ", name, " form: weights ", digest),
                                                .launches = TakeLaunches()}));
    return is_served ? absl::OkStatus() : context_.files.RemoveAll(directory);
  }

  // Converts the trained model to the served format; returns the digest of its weights.
  absl::StatusOr<std::string> MakeServedForm(const std::string& trained_directory, const std::string& directory) {
    NIBBLE_ASSIGN_OR_RETURN(const auto trained, model::Artifact::Open(trained_directory));
    const convert::ConvertOptions options = {
        .to = recipe_->served_format(), .measure_errors = false, .cancelled = stopping_};
    NIBBLE_ASSIGN_OR_RETURN(const convert::ConvertReport report,
                            convert::ConvertModel(context_.files, *trained, directory, options, context_.stream));
    return report.info.weights_digest;
  }

  const AttemptContext& context_;
  const jobs::JobSpec& spec_;
  AttemptData inputs_;
  std::unique_ptr<Recipe> recipe_;
  TrainingModel* model_ = nullptr;  // owned by the recipe
  const Optimizer optimizer_{spec_.optim};
  std::vector<Moments> moments_;
  std::unique_ptr<data::Loader> loader_;
  TrainingProgress progress_;
  std::int64_t max_steps_ = 0;
  std::optional<std::int64_t> max_micro_batches_;  // set in a run by epochs
  std::int64_t saved_step_ = 0;                    // step of the newest checkpoint: a later attempt resumes there
  bool continues_other_job_ = false;               // the attempt starts from another job's checkpoint
  std::optional<double> last_eval_loss_;
  std::map<std::string, std::uint64_t> reported_launches_;
  std::set<std::string> served_requests_;  // ids of checkpoint requests
  bool holds_claim_ = true;
  bool may_stop_ = true;
  const base::Cancelled stopping_ = [this] { return Stopping(); };
  // For work that must finish even if a stop is requested: a checkpoint.
  const base::Cancelled alive_ = [this] {
    ShowAlive();
    return false;
  };
  double shown_at_ = Seconds();
  std::int64_t shown_ = 0;
};

// Errors of the user are never retried (exit 42); other errors are.
int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kFailedPrecondition: return jobs::kExitBadInput;
    default: return 1;
  }
}

}  // namespace

jobs::Outcome RunAttempt(const AttemptContext& context) {
  absl::StatusOr<jobs::Outcome> outcome = AttemptRun(context).Run();
  if (outcome.ok()) return *std::move(outcome);
  const absl::Status& status = outcome.status();
  jobs::Outcome failed;
  failed.kind = jobs::Outcome::Kind::kFailed;
  failed.code = jobs::CodeName(status.code());
  failed.reason = base::Reason(status);
  failed.message = std::string(status.message());
  failed.exit_code = ExitCodeOf(status);
  return failed;
}

}  // namespace nibble::trainer
