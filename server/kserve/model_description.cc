#include "server/kserve/model_description.h"

#include <string_view>

#include "server/kserve/infer_request.h"
#include "server/kserve/tensors.h"

namespace nibble::kserve {

namespace {

constexpr char kPlatform[] = "nibble";

void SetTensor(const TensorSpec& spec, inference::ModelMetadataResponse::TensorMetadata& out) {
  out.set_name(spec.name);
  out.set_datatype(spec.datatype);
  out.add_shape(spec.size);
}

// "INT8" of MODEL_FORMAT_INT8.
std::string WithoutPrefix(std::string_view name, std::string_view prefix) {
  if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  return std::string(name);
}

}  // namespace

inference::ModelMetadataResponse ToMetadata(const v1::Model& model) {
  inference::ModelMetadataResponse out;
  out.set_name(model.name());
  *out.add_versions() = std::string(kModelVersion);
  out.set_platform(kPlatform);
  for (const TensorSpec& spec : Inputs()) SetTensor(spec, *out.add_inputs());
  for (const TensorSpec& spec : Outputs()) SetTensor(spec, *out.add_outputs());
  return out;
}

inference::ModelConfig ToConfig(const v1::Model& model) {
  inference::ModelConfig out;
  out.set_name(model.name());
  out.set_platform(kPlatform);
  out.set_backend(kPlatform);
  out.mutable_version_policy()->mutable_latest()->set_num_versions(1);
  for (const TensorSpec& spec : Inputs()) {
    inference::ModelInput& input = *out.add_input();
    input.set_name(spec.name);
    input.set_data_type(spec.config_type);
    input.add_dims(spec.size);
    input.set_optional(spec.optional);
  }
  for (const TensorSpec& spec : Outputs()) {
    inference::ModelOutput& output = *out.add_output();
    output.set_name(spec.name);
    output.set_data_type(spec.config_type);
    output.add_dims(spec.size);
  }
  out.mutable_model_transaction_policy()->set_decoupled(true);
  const auto set = [&](const char* key, const std::string& value) {
    (*out.mutable_parameters())[key].set_string_value(value);
  };
  set("format", WithoutPrefix(v1::ModelFormat_Name(model.format()), "MODEL_FORMAT_"));
  set("determinism", WithoutPrefix(v1::Determinism_Name(model.determinism()), "DETERMINISM_"));
  return out;
}

inference::RepositoryIndexResponse::ModelIndex ToIndex(const v1::Model& model) {
  inference::RepositoryIndexResponse::ModelIndex out;
  out.set_name(model.name());
  out.set_version(kModelVersion);
  out.set_state(model.loaded() ? "READY" : "UNAVAILABLE");
  if (!model.loaded()) out.set_reason(model.damaged() ? "damaged" : "unloaded");
  return out;
}

}  // namespace nibble::kserve
