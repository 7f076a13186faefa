#include "server/rpc/model_proto.h"

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/kv_pool.h"
#include "server/registry/model_facts.h"
#include "server/rpc/dataset_proto.h"
#include "server/rpc/time.h"

namespace nibble::rpc {

namespace {

using base::StrCat;

v1::ModelOrigin OriginOf(const std::string& source) {
  if (source == "import") return v1::MODEL_ORIGIN_IMPORT;
  if (source == "job") return v1::MODEL_ORIGIN_JOB;
  if (source == "convert") return v1::MODEL_ORIGIN_CONVERT;
  if (source == "checkpoint") return v1::MODEL_ORIGIN_CHECKPOINT;
  return v1::MODEL_ORIGIN_UNSPECIFIED;
}

void PutArchitecture(const model::ModelConfig& config, v1::ModelArchitecture& out) {
  out.set_family(config.architecture);
  out.set_hidden_size(static_cast<std::int32_t>(config.hidden_size));
  out.set_num_layers(static_cast<std::int32_t>(config.num_layers));
  out.set_num_heads(static_cast<std::int32_t>(config.num_heads));
  out.set_num_kv_heads(static_cast<std::int32_t>(config.num_kv_heads));
  out.set_head_size(static_cast<std::int32_t>(config.head_dim));
  out.set_intermediate_size(static_cast<std::int32_t>(config.ffn_size));
  out.set_vocab_size(static_cast<std::int32_t>(config.vocab_size));
  out.set_max_positions(static_cast<std::int32_t>(config.max_positions));
  out.set_tied_embeddings(config.tied_embeddings);
}

// The fields that only some formats have.
void PutFormatDetails(const model::ArtifactInfo& info, v1::Model& out) {
  if (info.weight_format() == model::Format::kInt8) {
    out.set_act_outliers(info.act_outliers);
    out.set_activations(info.weight_only ? v1::MODEL_FORMAT_BF16 : v1::MODEL_FORMAT_INT8);
  }
  if (info.weight_format() == model::Format::kNf4) {
    out.set_nf4_block(static_cast<std::int32_t>(info.nf4.block));
    out.set_double_quant(info.nf4.double_quant);
    if (info.nf4.double_quant) out.set_scaler_block(static_cast<std::int32_t>(info.nf4.scaler_block));
  }
}

}  // namespace

v1::ModelFormat ToProto(model::Format format) {
  switch (format) {
    case model::Format::kF32: return v1::MODEL_FORMAT_F32;
    case model::Format::kBF16: return v1::MODEL_FORMAT_BF16;
    case model::Format::kNf4: return v1::MODEL_FORMAT_NF4;
    case model::Format::kInt8: return v1::MODEL_FORMAT_INT8;
    case model::Format::kTernary: return v1::MODEL_FORMAT_TERNARY;
    case model::Format::kLora: return v1::MODEL_FORMAT_LORA;
  }
  return v1::MODEL_FORMAT_UNSPECIFIED;
}

absl::StatusOr<model::Format> FromProto(const char* field, v1::ModelFormat format) {
  switch (format) {
    case v1::MODEL_FORMAT_F32: return model::Format::kF32;
    case v1::MODEL_FORMAT_BF16: return model::Format::kBF16;
    case v1::MODEL_FORMAT_NF4: return model::Format::kNf4;
    case v1::MODEL_FORMAT_INT8: return model::Format::kInt8;
    case v1::MODEL_FORMAT_TERNARY: return model::Format::kTernary;
    case v1::MODEL_FORMAT_LORA: return model::Format::kLora;
    default: return base::FieldError(field, StrCat("is ", static_cast<int>(format), ", wanted a model format"));
  }
}

v1::Device CpuDevice() {
  v1::Device device;
  device.set_kind(v1::DEVICE_KIND_CPU);
  return device;
}

absl::Status CheckDevice(const v1::Device& device) {
  if (device.kind() == v1::DEVICE_KIND_CUDA) {
    return base::FieldError("device", StrCat("cuda:", device.ordinal(), " is not available, wanted cpu"));
  }
  if (device.kind() < v1::DEVICE_KIND_UNSPECIFIED || device.kind() > v1::DEVICE_KIND_CUDA) {
    return base::FieldError("device",
                            StrCat("has kind ", static_cast<int>(device.kind()), ", wanted AUTO, CPU or CUDA"));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Model> ToProto(const store::StoredModel& stored, bool loaded, bool detailed) {
  NIBBLE_ASSIGN_OR_RETURN(const registry::ModelFacts facts, registry::FactsOf(stored));
  const model::ArtifactInfo& info = facts.info;
  v1::Model out;
  out.set_name(stored.name);
  out.set_format(ToProto(info.format));
  out.set_digest(info.weights_digest);
  out.set_bytes(static_cast<std::int64_t>(stored.bytes));
  PutArchitecture(facts.config, *out.mutable_architecture());
  out.set_parameters(facts.parameters);
  out.set_base_model(facts.base_model);
  if (info.format == model::Format::kLora) out.set_base_digest(info.base_digest);
  out.set_origin(OriginOf(info.source));
  out.set_source(facts.source);
  out.set_determinism(info.determinism() == model::Determinism::kBitwise ? v1::DETERMINISM_EXACT
                                                                         : v1::DETERMINISM_BEST_EFFORT);
  out.set_tokenizer_digest(facts.tokenizer_digest);
  out.set_has_chat_template(facts.has_chat_template);
  if (facts.trained_format.has_value()) out.set_trained_format(ToProto(*facts.trained_format));
  PutFormatDetails(info, out);
  if (facts.head_format.has_value()) out.set_head_format(ToProto(*facts.head_format));
  if (facts.record_rows.has_value()) {
    out.set_record_rows(static_cast<std::int32_t>(*facts.record_rows));
    out.set_recorded_by(info.recorded_by);
  }
  out.set_loaded(loaded);
  *out.mutable_create_time() = ToProto(stored.created);
  // A model never changes; loading it does not change the etag.
  out.set_etag(store::Etag(stored));
  if (facts.conversion.has_value()) *out.mutable_conversion() = ToProto(*facts.conversion, detailed);
  return out;
}

v1::ConversionReport ToProto(const registry::ConversionReport& report, bool detailed) {
  v1::ConversionReport out;
  if (report.source_format.has_value()) out.set_source_format(ToProto(*report.source_format));
  if (report.target_format.has_value()) out.set_target_format(ToProto(*report.target_format));
  out.set_source_digest(report.source_digest);
  out.set_target_digest(report.target_digest);
  if (report.eval_loss_before.has_value()) out.set_eval_loss_before(*report.eval_loss_before);
  if (report.eval_loss_after.has_value()) out.set_eval_loss_after(*report.eval_loss_after);
  if (report.top1_agreement.has_value()) out.set_top1_agreement(*report.top1_agreement);
  out.set_eval_tokens(report.eval_tokens);
  out.set_adapter(report.adapter);
  if (!detailed) return out;
  for (const convert::LayerError& layer : report.layers) {
    auto* error = out.add_layers();
    error->set_layer(layer.name);
    error->set_rms_error(layer.rms_error);
    error->set_relative_error(layer.relative_error);
    error->set_max_abs_error(layer.max_abs_error);
  }
  return out;
}

v1::VerifyModelResponse ToProto(const registry::VerifyReport& report) {
  v1::VerifyModelResponse out;
  out.set_equal(report.equal);
  out.set_rows(static_cast<std::int32_t>(report.rows));
  out.set_differing_rows(static_cast<std::int32_t>(report.differing_rows));
  out.set_recorded_by(report.recorded_by);
  out.set_device(v1::DEVICE_KIND_CPU);
  out.set_digest(report.digest);
  if (report.first_difference.has_value()) {
    auto* difference = out.mutable_first_difference();
    difference->set_row(static_cast<std::int32_t>(report.first_difference->row));
    difference->set_token_id(report.first_difference->token_id);
    difference->set_recorded_digest(report.first_difference->recorded_digest);
    difference->set_computed_digest(report.first_difference->computed_digest);
  }
  return out;
}

v1::FileEntry ToProto(const registry::FileEntry& file) {
  v1::FileEntry out;
  out.set_path(file.path);
  out.set_size_bytes(file.size_bytes);
  out.set_sha256(file.sha256);
  return out;
}

registry::FileEntry FromProto(const v1::FileEntry& file) {
  return {.path = file.path(), .size_bytes = file.size_bytes(), .sha256 = file.sha256()};
}

v1::Residents ToProto(const serve::ModelManager& manager) {
  v1::Residents out;
  std::int64_t weights = 0;
  std::int64_t kv = 0;
  for (const auto& resident : manager.residents()) {
    const model::LoadedModel& loaded = resident->engine->model();
    const serve::EngineLoad load = resident->engine->load();
    auto* model = out.add_models();
    model->set_name(resident->name);
    model->set_format(ToProto(loaded.info().format));
    model->set_digest(loaded.info().weights_digest);
    *model->mutable_device() = CpuDevice();
    model->set_bytes(static_cast<std::int64_t>(loaded.resident_bytes()));
    *model->mutable_load_time() = ToProto(resident->loaded);
    model->set_active_requests(static_cast<std::int32_t>(load.running + load.waiting));
    weights += model->bytes();
    kv += load.total_pages * model::KvPool::PageBytes(loaded.config(), loaded.weights().kv_dtype);
  }
  out.set_weights_bytes(weights);
  out.set_kv_bytes(kv);
  return out;
}

}  // namespace nibble::rpc
