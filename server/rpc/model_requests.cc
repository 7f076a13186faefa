#include "server/rpc/model_requests.h"

#include <optional>
#include <string>
#include <vector>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/lora_method.h"
#include "server/jobs/spec_checker.h"
#include "server/rpc/model_proto.h"
#include "server/rpc/status.h"

namespace nibble::rpc {

using base::FieldError;
using base::StrCat;

namespace {

// UNSPECIFIED means unset. A number that the API does not define becomes LORA. No field of these requests accepts LORA,
// so the number is refused like any other unsuitable format.
std::optional<model::Format> FormatOf(v1::ModelFormat format) {
  if (format == v1::MODEL_FORMAT_UNSPECIFIED) return std::nullopt;
  return FromProto("", format).value_or(model::Format::kLora);
}

std::optional<registry::ExportFormat> FormatOf(v1::ExportFormat format) {
  switch (format) {
    case v1::EXPORT_FORMAT_PEFT: return registry::ExportFormat::kPeft;
    case v1::EXPORT_FORMAT_HF: return registry::ExportFormat::kHf;
    case v1::EXPORT_FORMAT_HF_BITNET: return registry::ExportFormat::kHfBitNet;
    case v1::EXPORT_FORMAT_COMPRESSED_TENSORS: return registry::ExportFormat::kCompressedTensors;
    default: return std::nullopt;
  }
}

registry::ConversionTolerance ToTolerance(const v1::ConversionTolerance& tolerance) {
  registry::ConversionTolerance out;
  if (tolerance.has_max_eval_loss_delta()) out.max_eval_loss_delta = tolerance.max_eval_loss_delta();
  if (tolerance.has_min_top1_agreement()) out.min_top1_agreement = tolerance.min_top1_agreement();
  return out;
}

// The options of the adapter; unset ones have the defaults of a job.
jobs::LoraMethod AdapterOptions(const v1::AdapterInit& init) {
  jobs::LoraMethod lora;
  if (init.has_r()) lora.r = init.r();
  if (init.has_alpha()) lora.alpha = init.alpha();
  if (init.target_modules_size() > 0)
    lora.target_modules = {init.target_modules().begin(), init.target_modules().end()};
  if (init.has_use_rslora()) lora.use_rslora = init.use_rslora();
  if (init.has_target_pattern()) lora.target_pattern = init.target_pattern();
  lora.rank_pattern = {init.rank_pattern().begin(), init.rank_pattern().end()};
  lora.alpha_pattern = {init.alpha_pattern().begin(), init.alpha_pattern().end()};
  return lora;
}

registry::AdapterInitRequest ToAdapterInit(const v1::AdapterInit& init) {
  registry::AdapterInitRequest out;
  out.name = init.name();
  if (init.method() == v1::ADAPTER_INIT_METHOD_LOFTQ) out.init.method = convert::InitMethod::kLoftq;
  // CheckFields refuses options that make no adapter.
  jobs::LoraMethod options = AdapterOptions(init);
  jobs::ResolveAdapter(options);
  out.init.adapter = jobs::AdapterOf(options).value_or(model::AdapterConfig());
  if (init.has_iterations()) out.init.iterations = init.iterations();
  return out;
}

absl::Status CheckFields(const v1::AdapterInit& init) {
  if (init.method() == v1::ADAPTER_INIT_METHOD_UNSPECIFIED) {
    return FieldError("adapter_init.method", "is not set, wanted PISSA or LOFTQ");
  }
  if (!v1::AdapterInitMethod_IsValid(init.method())) {
    return FieldError("adapter_init.method", StrCat("is ", static_cast<int>(init.method()), ", wanted PISSA or LOFTQ"));
  }
  const jobs::LoraMethod options = AdapterOptions(init);
  jobs::SpecChecker check;
  check.Int("adapter_init.r", options.r, 1, model::kMaxLoraRank);
  jobs::CheckAdapter("adapter_init", options, check);
  const std::vector<jobs::FieldViolation> found = check.Take();
  return found.empty() ? absl::OkStatus() : FieldError(found[0].field, found[0].message);
}

}  // namespace

registry::ImportRequest FromProto(const v1::ImportModelRequest& request) {
  registry::ImportRequest out;
  out.name = request.name();
  if (request.has_upload_id()) out.upload_id = request.upload_id();
  if (request.has_server_path()) out.server_path = request.server_path();
  out.dtype = FormatOf(request.dtype());
  if (request.has_base_model()) out.base_model = request.base_model();
  if (request.has_source_name()) out.source_name = request.source_name();
  if (request.has_random_init()) {
    const v1::RandomInit& init = request.random_init();
    registry::RandomInitRequest& random = out.random_init.emplace();
    random.seed = init.seed();
    if (init.has_tokenizer_dataset()) random.tokenizer_dataset = init.tokenizer_dataset();
    random.special_tokens.assign(init.special_tokens().begin(), init.special_tokens().end());
  }
  return out;
}

registry::ConvertRequest FromProto(const v1::ConvertModelRequest& request) {
  registry::ConvertRequest out;
  out.model = request.model();
  out.name = request.name();
  out.target = FormatOf(request.target());
  out.head = FormatOf(request.head());
  out.activations = FormatOf(request.activations());
  if (request.has_act_outliers()) out.act_outliers = request.act_outliers();
  if (request.has_nf4_block()) out.nf4_block = request.nf4_block();
  if (request.has_double_quant()) out.double_quant = request.double_quant();
  if (request.has_scaler_block()) out.scaler_block = request.scaler_block();
  if (request.has_adapter_init()) out.adapter_init = ToAdapterInit(request.adapter_init());
  out.merge = request.lora() == v1::LORA_HANDLING_MERGE;
  out.tolerance = ToTolerance(request.tolerance());
  if (request.has_eval_dataset()) out.eval_dataset = request.eval_dataset();
  return out;
}

registry::ExportRequest FromProto(const v1::ExportModelRequest& request) {
  registry::ExportRequest out;
  out.model = request.model();
  out.format = FormatOf(request.format());
  if (request.linear_class() == v1::HF_LINEAR_CLASS_BITLINEAR) out.linear_class = convert::HfBitNetClass::kBitLinear;
  if (request.linear_class() == v1::HF_LINEAR_CLASS_AUTOBITLINEAR)
    out.linear_class = convert::HfBitNetClass::kAutoBitLinear;
  if (request.has_max_shard_bytes()) out.max_shard_bytes = request.max_shard_bytes();
  return out;
}

registry::PublishRequest FromProto(const v1::PublishCheckpointRequest& request) {
  return {.checkpoint = request.checkpoint(), .name = request.name()};
}

absl::Status CheckFields(const v1::ConvertModelRequest& request) {
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", request.name()));
  if (request.has_checkpoint()) return Unimplemented("ConvertModelRequest.checkpoint");
  if (request.has_calibration_dataset()) return Unimplemented("ConvertModelRequest.calibration_dataset");
  if (!request.has_model()) return FieldError("source", "is not set, wanted model");
  const registry::ConvertRequest fields = FromProto(request);
  NIBBLE_RETURN_IF_ERROR(registry::CheckTarget(fields));
  if (request.has_adapter_init()) NIBBLE_RETURN_IF_ERROR(CheckFields(request.adapter_init()));
  if (request.lora() == v1::LORA_HANDLING_KEEP || request.lora() == v1::LORA_HANDLING_MERGE_AWARE) {
    return Unimplemented(StrCat("ConvertModelRequest.lora ", v1::LoraHandling_Name(request.lora())));
  }
  if (!v1::LoraHandling_IsValid(request.lora())) {
    return FieldError("lora", StrCat("is ", static_cast<int>(request.lora()), ", wanted MERGE"));
  }
  return registry::CheckQuality(fields);
}

absl::Status CheckFields(const v1::ExportModelRequest& request) {
  if (request.format() == v1::EXPORT_FORMAT_GGUF) {
    return Unimplemented(StrCat("ExportModelRequest.format ", v1::ExportFormat_Name(request.format())));
  }
  NIBBLE_RETURN_IF_ERROR(registry::CheckFormat(FromProto(request)));
  if (!v1::HfLinearClass_IsValid(request.linear_class())) {
    return FieldError("linear_class",
                      StrCat("is ", static_cast<int>(request.linear_class()), ", wanted BITLINEAR or AUTOBITLINEAR"));
  }
  return absl::OkStatus();
}

}  // namespace nibble::rpc
