#include "server/jobs/job_spec.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <type_traits>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/job_spec_fields.h"
#include "server/jobs/method.h"
#include "server/jobs/spec_checker.h"

namespace nibble::jobs {

using base::StrCat;

namespace {

constexpr std::size_t kMaxLabels = 16;
constexpr std::size_t kMaxText = 256;

// "auto", "cpu", or "cuda:" and a number of one to three digits.
bool IsDevice(const std::string& device) {
  if (device == "auto" || device == "cpu") return true;
  if (device.rfind("cuda:", 0) != 0 || device.size() < 6 || device.size() > 8) return false;
  return device.find_first_not_of("0123456789", 5) == std::string::npos;
}

// The choices and bounds of single fields.
template <IsSpec Spec>
void CheckFields(const Spec& spec, const std::string& method, const std::string& prefix, SpecChecker& check) {
  ForEachField<Spec>([&](const auto& field) {
    if (field.is_method && method != field.name) return;
    const std::string path = StrCat(prefix, field.name);
    const auto check_value = [&](const auto& value) {
      using Value = std::remove_cvref_t<decltype(value)>;
      if constexpr (IsSpec<Value>) {
        CheckFields(value, method, StrCat(path, "."), check);
      } else if constexpr (std::is_same_v<Value, std::string>) {
        if (!field.choices.empty()) check.OneOf(path, value, field.choices);
      } else if constexpr (std::is_same_v<Value, std::int64_t>) {
        check.Int(path, value, field.least, field.largest);
      }
    };
    const auto& value = spec.*field.member;
    if constexpr (requires { value.has_value(); }) {
      if (value.has_value()) check_value(*value);
    } else {
      check_value(value);
    }
  });
}

void CheckData(const JobSpec& spec, SpecChecker& check) {
  const DataConfig& data = spec.data;
  if (data.overlong == "split" && data.format.has_value() && *data.format != "text") {
    check.Add("data.overlong", StrCat("is \"split\", which needs text rows; the format is ", *data.format));
  }
  if (!spec.eval_dataset.empty()) check.Name("eval_dataset", spec.eval_dataset);
  if (!spec.eval_fraction.has_value()) return;
  check.Number("eval_fraction", *spec.eval_fraction, *spec.eval_fraction > 0.0 && *spec.eval_fraction <= 0.5,
               "above 0, at most 0.5");
  if (!spec.eval_dataset.empty()) {
    check.Add("eval_fraction", "is given together with eval_dataset, wanted at most one of the two");
  }
}

void CheckOptim(const OptimConfig& optim, SpecChecker& check) {
  check.Number("optim.lr", optim.lr, optim.lr > 0.0, "a number above 0");
  check.Number("optim.beta1", optim.beta1, optim.beta1 >= 0.0 && optim.beta1 < 1.0, "0 <= beta1 < 1");
  check.Number("optim.beta2", optim.beta2, optim.beta2 >= 0.0 && optim.beta2 < 1.0, "0 <= beta2 < 1");
  check.Number("optim.eps", optim.eps, static_cast<float>(optim.eps) > 0.0F, "a number above 0 as a 32-bit float");
  check.Number("optim.weight_decay", optim.weight_decay, optim.weight_decay >= 0.0, "at least 0");
  check.Number("optim.max_grad_norm", optim.max_grad_norm, optim.max_grad_norm >= 0.0, "at least 0 (0: no clipping)");
  if (optim.warmup_steps.has_value() && optim.warmup_ratio.has_value()) {
    check.Add("optim.warmup_ratio", "is given together with warmup_steps, wanted at most one of the two");
  }
  if (optim.warmup_ratio.has_value()) {
    check.Number("optim.warmup_ratio", *optim.warmup_ratio, *optim.warmup_ratio >= 0.0 && *optim.warmup_ratio <= 1.0,
                 "0 to 1");
  }
  check.Number("optim.min_lr_ratio", optim.min_lr_ratio, optim.min_lr_ratio >= 0.0 && optim.min_lr_ratio <= 1.0,
               "0 to 1");
}

void CheckRun(const JobSpec& spec, SpecChecker& check) {
  const RunConfig& run = spec.run;
  if (run.max_steps.has_value() && run.epochs.has_value()) {
    check.Add("run.epochs", "is given together with max_steps, wanted at most one of the two");
  }
  if (run.epochs.has_value()) {
    check.Number("run.epochs", *run.epochs, *run.epochs > 0.0 && *run.epochs <= 1e6, "above 0, at most 1000000");
  }
  if (run.eval_every > 0 && !HasEvaluation(spec)) {
    check.Add("run.eval_every",
              StrCat("is ", run.eval_every, ", which needs an evaluation set (eval_dataset or eval_fraction)"));
  }
}

// "JOB/STEP", as `nibble jobs checkpoints` prints it.
bool IsCheckpointName(const std::string& name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string::npos || slash + 1 == name.size()) return false;
  return base::CheckName("job", name.substr(0, slash)).ok() &&
         name.find_first_not_of("0123456789", slash + 1) == std::string::npos;
}

void CheckStart(const JobSpec& spec, SpecChecker& check) {
  if (!spec.resume_from.empty() && !IsCheckpointName(spec.resume_from)) {
    check.Add("resume_from", StrCat("is \"", spec.resume_from.substr(0, 64),
                                    "\", wanted the name of a checkpoint, JOB/STEP, from `nibble jobs checkpoints`"));
  }
  if (spec.warm_start_from.empty()) return;
  if (!spec.resume_from.empty()) {
    check.Add("warm_start_from", "is given together with resume_from, wanted at most one of the two");
  }
  if (spec.warm_start_from.find('/') == std::string::npos) {
    check.Name("warm_start_from", spec.warm_start_from);
  } else if (!IsCheckpointName(spec.warm_start_from)) {
    check.Add("warm_start_from", StrCat("is \"", spec.warm_start_from.substr(0, 64),
                                        "\", wanted the name of a checkpoint, JOB/STEP, or of an adapter"));
  }
}

// Whether the API names this method although no server can run it yet.
bool IsUnimplementedMethod(const std::string& method) { return method == "aqt"; }

}  // namespace

bool HasEvaluation(const JobSpec& spec) { return !spec.eval_dataset.empty() || spec.eval_fraction.has_value(); }

std::string StartCheckpoint(const JobSpec& spec) {
  if (!spec.resume_from.empty()) return spec.resume_from;
  return StartModel(spec).empty() ? spec.warm_start_from : "";
}

std::string StartModel(const JobSpec& spec) {
  return spec.warm_start_from.find('/') == std::string::npos ? spec.warm_start_from : "";
}

std::vector<FieldViolation> FindViolations(const JobSpec& spec) {
  SpecChecker check;
  const Method* method = FindMethod(spec.method);
  if (method == nullptr && !IsUnimplementedMethod(spec.method)) {
    std::vector<const char*> names;
    for (const Method* known : Methods()) names.push_back(known->name());
    check.OneOf("method", spec.method, names);
  }
  check.Name("base_model", spec.base_model);
  check.Name("train_dataset", spec.train_dataset);
  if (!spec.output_model.empty()) check.Name("output_model", spec.output_model);
  if (!IsDevice(spec.device)) {
    check.Add("device", StrCat("is \"", spec.device.substr(0, 64), "\", wanted auto, cpu or cuda:N"));
  }
  if (spec.display_name.size() > kMaxText) {
    check.Add("display_name", StrCat("has ", spec.display_name.size(), " bytes, wanted at most ", kMaxText));
  }
  if (spec.labels.size() > kMaxLabels) {
    check.Add("labels", StrCat("has ", spec.labels.size(), " entries, wanted at most ", kMaxLabels));
  }
  for (const auto& [key, value] : spec.labels) {
    if (key.empty() || key.size() > kMaxText || value.size() > kMaxText) {
      check.Add("labels", StrCat("has an empty key, or a key or value longer than ", kMaxText, " bytes"));
      break;
    }
  }
  CheckFields(spec, spec.method, "", check);
  CheckData(spec, check);
  if (method != nullptr) method->Check(spec, check);
  if (method != nullptr && spec.run.max_steps.has_value()) method->CheckSteps(spec, *spec.run.max_steps, check);
  CheckOptim(spec.optim, check);
  CheckRun(spec, check);
  CheckStart(spec, check);
  return check.Take();
}

namespace {

absl::Status ErrorOf(const std::vector<FieldViolation>& violations) {
  if (violations.empty()) return absl::OkStatus();
  std::string text;
  std::map<std::string, std::string> metadata;
  for (const FieldViolation& violation : violations) {
    text = StrCat(text, text.empty() ? "" : "; ", violation.field, ": ", violation.message);
    metadata.emplace(violation.field, violation.message);
  }
  metadata["field"] = violations.front().field;
  return base::WithReason(absl::InvalidArgumentError(text), "FIELD_VIOLATION", metadata);
}

}  // namespace

absl::Status Validate(const JobSpec& spec) {
  const Method* method = FindMethod(spec.method);
  if (method != nullptr) {
    NIBBLE_RETURN_IF_ERROR(method->CheckImplemented(spec));
  } else if (IsUnimplementedMethod(spec.method)) {
    return UnimplementedField("method", StrCat(spec.method, " is not implemented yet, wanted ", MethodChoices()));
  }
  return ErrorOf(FindViolations(spec));
}

absl::Status CheckSteps(const JobSpec& spec, std::int64_t steps) {
  SpecChecker check;
  if (const Method* method = FindMethod(spec.method); method != nullptr) method->CheckSteps(spec, steps, check);
  return ErrorOf(check.Take());
}

JobSpec Resolve(JobSpec spec, const std::string& job_id, const std::string& dataset_format,
                const std::string& default_device) {
  if (spec.output_model.empty()) spec.output_model = job_id;
  if (spec.device == "auto") spec.device = default_device;
  if (!spec.data.format.has_value()) spec.data.format = dataset_format;
  if (!spec.data.overlong.has_value()) spec.data.overlong = *spec.data.format == "text" ? "split" : "truncate";
  if (!spec.optim.warmup_steps.has_value() && !spec.optim.warmup_ratio.has_value()) spec.optim.warmup_ratio = 0.03;
  if (!spec.run.max_steps.has_value() && !spec.run.epochs.has_value()) spec.run.epochs = 1.0;
  if (const Method* method = FindMethod(spec.method); method != nullptr) method->Resolve(spec);
  return spec;
}

namespace {

// The micro-batches of all epochs. The count of one epoch is rounded up; its product with run.epochs is not rounded.
double MicroBatchesOfEpochs(const RunConfig& run, std::int64_t rows_in_epoch) {
  const double in_epoch = std::ceil(static_cast<double>(rows_in_epoch) / static_cast<double>(run.micro_batch));
  return run.epochs.value_or(1.0) * in_epoch;
}

}  // namespace

std::int64_t NumSteps(const RunConfig& run, std::int64_t rows_in_epoch) {
  if (run.max_steps.has_value()) return *run.max_steps;
  const double steps = std::ceil(MicroBatchesOfEpochs(run, rows_in_epoch) / static_cast<double>(run.grad_accum));
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(steps));
}

std::optional<std::int64_t> NumMicroBatches(const RunConfig& run, std::int64_t rows_in_epoch) {
  if (run.max_steps.has_value()) return std::nullopt;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(MicroBatchesOfEpochs(run, rows_in_epoch))));
}

}  // namespace nibble::jobs
