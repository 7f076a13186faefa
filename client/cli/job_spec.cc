#include "client/cli/job_spec.h"

#include "absl/strings/numbers.h"

#include "client/cli/message_json.h"
#include "client/cli/session.h"
#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::cli {
namespace {

// Selects the method of the flag. Keeps the method's parameters from the file if the file names the same method.
absl::Status SetMethod(const std::string& method, v1::JobSpec& spec) {
  const auto* field = v1::JobSpec::descriptor()->FindFieldByName(method);
  if (field == nullptr || field->containing_oneof() == nullptr || field->containing_oneof()->name() != "method") {
    return base::FieldError("method", base::StrCat("got \"", method, "\", want qlora or bitnet_qat"));
  }
  static_cast<void>(spec.GetReflection()->MutableMessage(&spec, field));
  return absl::OkStatus();
}

absl::Status SetLora(const JobFlags& flags, v1::JobSpec& spec) {
  if (!flags.rank.has_value() && !flags.alpha.has_value()) return absl::OkStatus();
  const auto set = [&](auto& lora) {
    if (flags.rank.has_value()) lora.set_r(*flags.rank);
    if (flags.alpha.has_value()) lora.set_alpha(*flags.alpha);
    return absl::OkStatus();
  };
  if (spec.has_qlora()) return set(*spec.mutable_qlora());
  if (spec.has_lora()) return set(*spec.mutable_lora());
  return base::FieldError(flags.rank.has_value() ? "rank" : "alpha",
                          "applies only to methods that train an adapter (qlora)");
}

// "100": steps; "0.03" and "3%": a share of all steps.
absl::Status SetWarmup(const std::string& text, v1::OptimConfig& optim) {
  const bool percent = !text.empty() && text.back() == '%';
  const std::string number = percent ? text.substr(0, text.size() - 1) : text;
  if (std::int64_t steps = 0; !percent && absl::SimpleAtoi(number, &steps)) {
    optim.set_warmup_steps(steps);
    return absl::OkStatus();
  }
  double ratio = 0;
  if (!absl::SimpleAtod(number, &ratio)) {
    return base::FieldError("warmup", base::StrCat("got \"", text, "\", want steps (100) or a share of all steps (0.03 or 3%)"));
  }
  optim.set_warmup_ratio(percent ? ratio / 100 : ratio);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::JobSpec> BuildSpec(const JobFlags& flags) {
  v1::JobSpec spec;
  if (flags.spec_file.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadText("spec", *flags.spec_file));
    NIBBLE_ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(text));
    NIBBLE_RETURN_IF_ERROR(FromJson(json, spec));
  }
  for (const auto& text : {flags.base, flags.dataset, flags.eval_dataset, flags.output}) {
    if (text.has_value()) NIBBLE_RETURN_IF_ERROR(CheckText("spec", *text));
  }
  if (flags.method.has_value()) NIBBLE_RETURN_IF_ERROR(SetMethod(*flags.method, spec));
  NIBBLE_RETURN_IF_ERROR(SetLora(flags, spec));
  if (flags.base.has_value()) spec.set_base_model(*flags.base);
  if (flags.dataset.has_value()) spec.set_train_dataset(*flags.dataset);
  if (flags.eval_dataset.has_value()) {
    spec.set_eval_dataset(*flags.eval_dataset);
    spec.clear_eval_fraction();
  }
  if (flags.output.has_value()) spec.mutable_publish()->set_output_model(*flags.output);
  if (flags.device.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(*spec.mutable_device(), ParseDevice("device", *flags.device));
  }
  if (flags.seq_len.has_value()) spec.mutable_data()->set_max_seq_len(*flags.seq_len);
  if (flags.packing.has_value()) {
    spec.mutable_data()->set_packing(*flags.packing == "none" ? v1::PACKING_MODE_NONE : v1::PACKING_MODE_SEGMENTED);
  }
  if (flags.lr.has_value()) spec.mutable_optim()->set_lr(*flags.lr);
  if (flags.warmup.has_value()) NIBBLE_RETURN_IF_ERROR(SetWarmup(*flags.warmup, *spec.mutable_optim()));
  if (flags.epochs.has_value()) spec.mutable_run()->set_epochs(*flags.epochs);
  if (flags.max_steps.has_value()) spec.mutable_run()->set_max_steps(*flags.max_steps);
  if (flags.micro_batch.has_value()) spec.mutable_run()->set_micro_batch(*flags.micro_batch);
  if (flags.grad_accum.has_value()) spec.mutable_run()->set_grad_accum(*flags.grad_accum);
  if (flags.seed.has_value()) spec.mutable_run()->set_seed(*flags.seed);
  if (flags.save_every.has_value()) spec.mutable_run()->set_save_every(*flags.save_every);
  if (flags.eval_every.has_value()) spec.mutable_run()->set_eval_every(*flags.eval_every);

  // Fields that every spec needs. The server checks the rest.
  if (spec.method_case() == v1::JobSpec::METHOD_NOT_SET)
    return base::FieldError("method", "is missing: set it with --method or in --spec");
  if (spec.base_model().empty()) return base::FieldError("base_model", "is missing: set it with --base or in --spec");
  if (spec.train_dataset().empty()) {
    return base::FieldError("train_dataset", "is missing: set it with --dataset or in --spec");
  }
  return spec;
}

}  // namespace nibble::cli
