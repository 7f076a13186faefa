#include "client/cli/job_spec.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "client/cli/message_json.h"
#include "client/cli/session.h"
#include "server/base/error.h"
#include "server/base/json_file.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::cli {
namespace {

using google::protobuf::FieldDescriptor;

constexpr SpecOption kSpecOptions[] = {
    {"--base", "base_model", "Model to start from"},
    {"--dataset", "train_dataset", "Training dataset"},
    {"--eval-dataset", "eval_dataset", "Evaluation dataset"},
    {"--eval-split", "eval_fraction", "Share of the training rows that is held out for evaluation: 0.1 or 10%"},
    {"--output", "publish.output_model", "Name of the trained model"},
    {"--epochs", "run.epochs", "Passes over the data; may be a fraction (default: 1)"},
    {"--max-steps", "run.max_steps", "Optimizer steps, instead of --epochs"},
    {"--micro-batch", "run.micro_batch", "Sequences per forward pass"},
    {"--grad-accum", "run.grad_accum", "Micro-batches per optimizer step"},
    {"--seq-len", "data.max_seq_len", "Maximum tokens per sequence; longer text rows are split"},
    {"--packing", "data.packing", "segmented: several rows per sequence; none: one row per sequence"},
    {"--lr", "optim.lr", "Peak learning rate"},
    {"--optimizer", "optim.optimizer", "adamw, adamw_8bit (8-bit moments), sgd or lion"},
    {"--schedule", "optim.schedule", "Learning rate after the warm-up: constant, linear, cosine or wsd"},
    {"--seed", "run.seed", "Seed of all random numbers"},
    {"--save-every", "run.save_every", "Steps between checkpoints"},
    {"--eval-every", "run.eval_every", "Steps between evaluations; needs evaluation data"},
    {"--resume-from", "resume_from",
     "Checkpoint JOB/STEP of another job to continue: weights, optimizer, steps and place in the data"},
    {"--warm-start-from", "warm_start_from",
     "Checkpoint JOB/STEP of another job, or adapter, whose weights are the initial weights"},
};

// Returns the last field of a path such as run.max_steps. `names` receives the names of all its fields.
const FieldDescriptor& FieldAt(const std::string& path, std::vector<std::string>& names) {
  names = absl::StrSplit(path, '.');
  const google::protobuf::Descriptor* message = v1::JobSpec::descriptor();
  for (std::size_t i = 0; i + 1 < names.size(); ++i) message = message->FindFieldByName(names[i])->message_type();
  return *message->FindFieldByName(names.back());
}

// The JSON value of an option's text. InvalidArgument describes the texts that the field takes.
absl::StatusOr<base::Json> ValueOf(const FieldDescriptor& field, const std::string& text) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64: {
      const bool is_32 = field.cpp_type() == FieldDescriptor::CPPTYPE_INT32;
      std::int64_t number = 0;
      if (absl::SimpleAtoi(text, &number) && (!is_32 || number == static_cast<std::int32_t>(number))) return number;
      return absl::InvalidArgumentError(base::StrCat("a whole number of at most ", is_32 ? 32 : 64, " bits"));
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      const bool percent = text.ends_with('%');
      double number = 0;
      if (absl::SimpleAtod(text.substr(0, text.size() - (percent ? 1 : 0)), &number))
        return percent ? number / 100 : number;
      return absl::InvalidArgumentError("a number, such as 0.1 or 10%");
    }
    case FieldDescriptor::CPPTYPE_ENUM: {
      std::string names;
      for (int i = 1; i < field.enum_type()->value_count(); ++i) {
        const std::string name = LowerEnumName(*field.enum_type(), field.enum_type()->value(i)->number());
        if (text == name) return name;
        names += base::StrCat(i > 1 ? ", " : "", name);
      }
      return absl::InvalidArgumentError(base::StrCat("one of ", names));
    }
    default: return text;
  }
}

absl::Status SetField(const std::string& path, const std::string& text, v1::JobSpec& spec) {
  NIBBLE_RETURN_IF_ERROR(CheckText(path, text));
  std::vector<std::string> names;
  const FieldDescriptor& field = FieldAt(path, names);
  absl::StatusOr<base::Json> value = ValueOf(field, text);
  if (!value.ok()) {
    return base::FieldError(path, base::StrCat("got \"", text, "\", wanted ", base::ToStd(value.status().message())));
  }
  base::Json json = *std::move(value);
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    base::Json outer = base::Json::object();
    outer[*name] = std::move(json);
    json = std::move(outer);
  }
  return FromJson(json, spec);
}

// Selects the method of the flag. Keeps the method's parameters from the file, which may not name another method: its
// parameters would be lost.
absl::Status SetMethod(const std::string& method, const JobFlags& flags, v1::JobSpec& spec) {
  const auto* field = v1::JobSpec::descriptor()->FindFieldByName(method);
  if (field == nullptr || field->containing_oneof() == nullptr || field->containing_oneof()->name() != "method") {
    return base::FieldError(
        "method", base::StrCat("got \"", method, "\", wanted qlora, bitnet_qat, full, int8_mixed, int8_qt or lora"));
  }
  const auto* in_file = spec.GetReflection()->GetOneofFieldDescriptor(spec, field->containing_oneof());
  if (in_file != nullptr && in_file != field) {
    return base::FieldError("method", base::StrCat("got ", method, " from --method and ", in_file->name(), " from ",
                                                   *flags.spec_file, ", wanted the same method in both"));
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
                          "applies only to methods that train an adapter (qlora, lora)");
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
    return base::FieldError(
        "warmup", base::StrCat("got \"", text, "\", wanted steps (100) or a share of all steps (0.03 or 3%)"));
  }
  optim.set_warmup_ratio(percent ? ratio / 100 : ratio);
  return absl::OkStatus();
}

}  // namespace

std::span<const SpecOption> SpecOptions() { return kSpecOptions; }

std::string CheckSpecOption(const SpecOption& option, const std::string& text) {
  std::vector<std::string> names;
  const auto value = ValueOf(FieldAt(option.path, names), text);
  return value.ok() ? "" : base::StrCat("got ", text, ", wanted ", base::ToStd(value.status().message()));
}

absl::StatusOr<v1::JobSpec> BuildSpec(const JobFlags& flags) {
  v1::JobSpec spec;
  if (flags.spec_file.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadText("spec", *flags.spec_file));
    const auto json = base::ParseJsonFile(text, *flags.spec_file);
    if (!json.ok()) return base::FieldError("spec", base::ToStd(json.status().message()));
    NIBBLE_RETURN_IF_ERROR(FromJson(*json, spec));
  }
  if (flags.method.has_value()) NIBBLE_RETURN_IF_ERROR(SetMethod(*flags.method, flags, spec));
  NIBBLE_RETURN_IF_ERROR(SetLora(flags, spec));
  // The two fields exclude each other, so a flag for one clears the other, which the file may have set.
  if (flags.fields.contains("eval_dataset")) spec.clear_eval_fraction();
  if (flags.fields.contains("eval_fraction")) spec.clear_eval_dataset();
  for (const auto& [path, text] : flags.fields) NIBBLE_RETURN_IF_ERROR(SetField(path, text, spec));
  if (flags.device.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(*spec.mutable_device(), ParseDevice("device", *flags.device));
  }
  if (flags.warmup.has_value()) NIBBLE_RETURN_IF_ERROR(SetWarmup(*flags.warmup, *spec.mutable_optim()));

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
