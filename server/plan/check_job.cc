#include "server/plan/check_job.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/data/held_out.h"
#include "server/model/stored_tensors.h"
#include "server/plan/method_plan.h"

namespace nibble::plan {

using base::FieldError;
using base::StrCat;

namespace {

absl::Status CheckDevice(const jobs::JobSpec& spec, const JobInputs& inputs) {
  if (std::find(inputs.devices.begin(), inputs.devices.end(), spec.device) != inputs.devices.end())
    return absl::OkStatus();
  std::string list;
  for (const std::string& device : inputs.devices) list = StrCat(list, list.empty() ? "" : ", ", device);
  return FieldError("device", StrCat("\"", spec.device, "\" is not available, wanted one of ", list));
}

// The trained model is evaluated in the form that is served: int8 or ternary. Refuses a model that could not be served.
absl::Status CheckServedForm(const jobs::JobSpec& spec, const JobInputs& inputs) {
  const absl::Status fits = model::CheckInFeatures(TrainedConfig(spec, inputs.config), PlanOf(spec).ServedForm(spec));
  return fits.ok() ? fits : FieldError("base_model", base::ToStd(fits.message()));
}

absl::StatusOr<data::Dataset> CheckData(const char* field, const data::TokenSource& source, const JobInputs& inputs) {
  const base::Cancelled cancelled = [&inputs] { return inputs.cancel.cancelled(); };
  auto loaded = inputs.load ? inputs.load(source, cancelled)
                            : data::LoadDataset(source.data_path, source.format, source.text, source.config,
                                                source.options, cancelled);
  if (loaded.ok() || absl::IsCancelled(loaded.status())) return loaded;
  absl::Status named(loaded.status().code(), StrCat(field, ": ", base::ToStd(loaded.status().message())));
  const std::string reason = base::Reason(loaded.status());
  std::map<std::string, std::string> metadata = base::ReasonMetadata(loaded.status());
  metadata["field"] = field;
  return base::WithReason(named, reason.empty() ? "FIELD_VIOLATION" : reason, metadata);
}

}  // namespace

data::TokenizeOptions OptionsOf(const jobs::JobSpec& spec, data::RowFormat format) {
  const data::RowFormat trained = data::ParseRowFormat(spec.data.format.value_or("")).value_or(format);
  return {.max_seq_len = spec.data.max_seq_len,
          .overlong = data::OverlongFor(spec.data.overlong.value_or(""), trained, format),
          .train_on_prompt = spec.data.train_on_prompt,
          .add_special_tokens = spec.data.add_special_tokens};
}

absl::StatusOr<std::vector<data::TokenSource>> TokenSourcesOf(const jobs::JobSpec& spec, const JobInputs& inputs) {
  const auto source_of = [&](const DataFile& file,
                             const std::string& format_name) -> absl::StatusOr<data::TokenSource> {
    NIBBLE_ASSIGN_OR_RETURN(const data::RowFormat format, data::ParseRowFormat(format_name));
    return data::TokenSource{.data_path = file.path,
                             .data_sha256 = file.sha256,
                             .tokens_directory = file.tokens_directory,
                             .format = format,
                             .text = inputs.text,
                             .config = inputs.config,
                             .options = OptionsOf(spec, format)};
  };
  std::vector<data::TokenSource> sources(1);
  NIBBLE_ASSIGN_OR_RETURN(sources[0], source_of(inputs.train, spec.data.format.value_or(inputs.train.format)));
  if (inputs.eval.path.empty()) return sources;
  NIBBLE_ASSIGN_OR_RETURN(
      data::TokenSource eval,
      source_of(inputs.eval, inputs.eval.format.empty() ? inputs.train.format : inputs.eval.format));
  sources.push_back(std::move(eval));
  return sources;
}

model::ModelConfig TrainedConfig(const jobs::JobSpec& spec, const model::ModelConfig& base) {
  return PlanOf(spec).TrainedConfig(spec, base);
}

absl::Status CheckWithoutRows(const jobs::JobSpec& spec, const JobInputs& inputs) {
  NIBBLE_RETURN_IF_ERROR(CheckDevice(spec, inputs));
  if (spec.data.max_seq_len > inputs.config.context_limit()) {
    return FieldError("data.max_seq_len", StrCat("is ", spec.data.max_seq_len, ", the model has ",
                                                 inputs.config.limit_text(inputs.config.context_limit())));
  }
  NIBBLE_RETURN_IF_ERROR(PlanOf(spec).CheckBase(spec, inputs));
  NIBBLE_RETURN_IF_ERROR(PlanOf(spec).CheckFields(spec, inputs.config));
  return CheckServedForm(spec, inputs);
}

absl::StatusOr<CheckedData> CheckJob(const jobs::JobSpec& spec, const JobInputs& inputs) {
  NIBBLE_RETURN_IF_ERROR(CheckWithoutRows(spec, inputs));
  CheckedData data;
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<data::TokenSource> sources, TokenSourcesOf(spec, inputs));
  NIBBLE_ASSIGN_OR_RETURN(data.train, CheckData("train_dataset", sources.front(), inputs));
  if (sources.size() > 1) {
    NIBBLE_ASSIGN_OR_RETURN(data.eval, CheckData("eval_dataset", sources.back(), inputs));
  }
  if (spec.eval_fraction.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(data::HeldOut parts, data::HoldOut(data.train, *spec.eval_fraction));
    data.train = std::move(parts.train);
    data.eval = std::move(parts.eval);
  }
  return data;
}

}  // namespace nibble::plan
