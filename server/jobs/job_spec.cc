#include "server/jobs/job_spec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <span>
#include <string_view>
#include <type_traits>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/strings.h"
#include "server/jobs/job_spec_fields.h"

namespace nibble::jobs {

using base::StrCat;

namespace {

constexpr std::size_t kMaxLabels = 16;
constexpr std::size_t kMaxText = 256;

class Checker {
 public:
  void Add(std::string field, std::string message) { found_.push_back({std::move(field), std::move(message)}); }

  void Name(std::string_view field, const std::string& name) {
    const absl::Status status = base::CheckName(field, name);
    if (status.ok()) return;
    // CheckName's message begins with the field, as FieldError makes it.
    Add(std::string(field), std::string(status.message()).substr(field.size() + 2));
  }
  void Int(std::string field, std::int64_t value, std::int64_t low,
           std::int64_t high = std::numeric_limits<std::int64_t>::max()) {
    if (value >= low && value <= high) return;
    if (high == std::numeric_limits<std::int64_t>::max()) {
      Add(std::move(field), StrCat("is ", value, ", wanted at least ", low));
    } else {
      Add(std::move(field), StrCat("is ", value, ", wanted ", low, " to ", high));
    }
  }
  // Written so that NaN fails.
  void Number(std::string field, double value, bool good, std::string_view wanted) {
    if (std::isfinite(value) && good) return;
    Add(std::move(field), StrCat("is ", value, ", wanted ", wanted));
  }
  void OneOf(std::string field, const std::string& value, std::span<const char* const> choices) {
    if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
    std::string list;
    for (const std::string_view choice : choices) list = StrCat(list, list.empty() ? "" : ", ", choice);
    Add(std::move(field), StrCat("is \"", value.substr(0, 64), "\", wanted one of ", list));
  }
  std::vector<FieldViolation> Take() { return std::move(found_); }

 private:
  std::vector<FieldViolation> found_;
};

bool IsDevice(const std::string& device) {
  if (device == "auto" || device == "cpu") return true;
  if (device.rfind("cuda:", 0) != 0 || device.size() < 6 || device.size() > 8) return false;
  return device.find_first_not_of("0123456789", 5) == std::string::npos;
}

// The choices and bounds of single fields.
template <IsSpec Spec>
void CheckFields(const Spec& spec, const std::string& method, const std::string& prefix, Checker& check) {
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

void CheckData(const JobSpec& spec, Checker& check) {
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

void CheckQLora(const QLoraMethod& qlora, Checker& check) {
  check.Number("qlora.alpha", qlora.alpha, qlora.alpha > 0.0 && qlora.alpha <= 1e6, "above 0, at most 1e+06");
  check.Number("qlora.dropout", qlora.dropout, qlora.dropout >= 0.0 && qlora.dropout < 1.0, "0 <= dropout < 1");
  if (qlora.target_modules.empty()) check.Add("qlora.target_modules", "is empty, wanted at least one");
  const std::vector<std::string> known = QLoraMethod().target_modules;
  std::set<std::string> seen;
  for (const std::string& module : qlora.target_modules) {
    if (std::find(known.begin(), known.end(), module) == known.end()) {
      std::string list;
      for (const std::string& name : known) list = StrCat(list, list.empty() ? "" : ", ", name);
      check.Add("qlora.target_modules", StrCat("has \"", module.substr(0, 64), "\", wanted some of ", list));
    } else if (!seen.insert(module).second) {
      check.Add("qlora.target_modules", StrCat("has \"", module, "\" twice"));
    }
  }
}

void CheckBitNetQat(const BitNetQatMethod& bitnet, Checker& check) {
  if (bitnet.act_bits != 4 && bitnet.act_bits != 8 && bitnet.act_bits != 16) {
    check.Add("bitnet_qat.act_bits", StrCat("is ", bitnet.act_bits, ", wanted 4, 8 or 16"));
  }
  if (bitnet.scale_grad && bitnet.ste == "identity") {
    check.Add("bitnet_qat.scale_grad", "is true, which ste identity does not use: wanted ste round_only or clipped");
  }
}

void CheckOptim(const OptimConfig& optim, Checker& check) {
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

void CheckRun(const JobSpec& spec, Checker& check) {
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

bool IsLaterMethod(const std::string& method) {
  for (const char* later : {"int8_mixed", "int8_qt", "aqt", "lora", "full"}) {
    if (method == later) return true;
  }
  return false;
}

}  // namespace

bool HasEvaluation(const JobSpec& spec) { return !spec.eval_dataset.empty() || spec.eval_fraction.has_value(); }

std::vector<FieldViolation> FindViolations(const JobSpec& spec) {
  Checker check;
  if (!IsLaterMethod(spec.method)) check.OneOf("method", spec.method, kMethods);
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
      check.Add("labels", StrCat("has a key or value that is empty or longer than ", kMaxText, " bytes"));
      break;
    }
  }
  CheckFields(spec, spec.method, "", check);
  CheckData(spec, check);
  if (spec.method == kMethodQLora) CheckQLora(spec.qlora, check);
  if (spec.method == kMethodBitNetQat) CheckBitNetQat(spec.bitnet_qat, check);
  CheckOptim(spec.optim, check);
  CheckRun(spec, check);
  return check.Take();
}

absl::Status Validate(const JobSpec& spec) {
  const auto unimplemented = [](const char* field, std::string_view what) {
    return base::WithReason(absl::UnimplementedError(StrCat(field, ": ", what)), "UNIMPLEMENTED", {{"field", field}});
  };
  if (IsLaterMethod(spec.method)) {
    return unimplemented("method", StrCat(spec.method, " is not implemented yet, wanted qlora or bitnet_qat"));
  }
  if (spec.method == kMethodQLora && !spec.qlora.double_quant) {
    return unimplemented("qlora.double_quant", "false is not implemented yet: nf4 bases are always double quantized");
  }
  const std::vector<FieldViolation> violations = FindViolations(spec);
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

JobSpec Resolve(JobSpec spec, const std::string& job_id, const std::string& dataset_format,
                const std::string& default_device) {
  if (spec.output_model.empty()) spec.output_model = job_id;
  if (spec.device == "auto") spec.device = default_device;
  if (!spec.data.format.has_value()) spec.data.format = dataset_format;
  if (!spec.data.overlong.has_value()) spec.data.overlong = *spec.data.format == "text" ? "split" : "truncate";
  if (!spec.optim.warmup_steps.has_value() && !spec.optim.warmup_ratio.has_value()) spec.optim.warmup_ratio = 0.03;
  if (!spec.run.max_steps.has_value() && !spec.run.epochs.has_value()) spec.run.epochs = 1.0;
  return spec;
}

namespace {

// Micro-batches of the run's epochs, not rounded.
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
