// Makes an artifact from a training job's result: an adapter on its base, or all weights (convert.h declares both).
#include <map>
#include <string>
#include <string_view>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/adapter_model.h"
#include "server/convert/convert.h"
#include "server/model/artifact_writer.h"
#include "server/model/float_convert.h"
#include "server/model/safetensors.h"
#include "server/model/saved_modules.h"
#include "server/model/stored_tensors.h"
#include "server/model/tensor_table.h"

namespace nibble::convert {

using base::StrCat;
using kernels::DType;
using model::Format;
using model::TensorSpec;

absl::StatusOr<model::ArtifactInfo> MakeLoraModel(base::FileSystem& files, const model::Artifact& base,
                                                  const model::AdapterConfig& adapter,
                                                  const std::vector<std::vector<float>>& values,
                                                  const base::Json& provenance, const std::string& target,
                                                  const char* made_of, const base::Cancelled& cancelled) {
  NIBBLE_RETURN_IF_ERROR(CheckAdapterBase(base.info()));
  if (const std::string problem = model::SavedModulesProblem(base.config(), adapter, base.info().int8_head);
      !problem.empty()) {
    return base::WithReason(absl::FailedPreconditionError(StrCat("modules_to_save ", problem)), "ADAPTER_BASE",
                            {{"got", "int8 head"}, {"wanted", "float head"}});
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto writer, model::ArtifactWriter::CreateOn(files, target, base, cancelled));
  NIBBLE_RETURN_IF_ERROR(writer->PutAdapter(base.config(), adapter, values));
  NIBBLE_RETURN_IF_ERROR(writer->CopyCompanions(base.directory()));
  model::ArtifactInfo info = base.info();
  info.format = Format::kLora;
  info.base_format = base.info().format;
  info.trained_outliers.reset();  // a float base may have it, but the adapter was trained with float products
  info.base_digest = base.info().weights_digest;
  info.source = made_of;
  info.recorded_by.clear();
  info.provenance = provenance;
  return writer->Finish(base.config(), std::move(info));
}

namespace {

model::ArtifactInfo InfoOf(const TrainedForm& form) {
  model::ArtifactInfo info;
  info.bitnet = form.bitnet;
  info.kv_dtype = form.kv_dtype;
  if (form.dtype == DType::kI8) {
    info.format = Format::kInt8;
    info.act_outliers = form.trained_outliers.value_or(0);
    info.weight_only = form.weight_only;
  } else {
    info.format = form.dtype == DType::kBF16 ? Format::kBF16 : Format::kF32;
    info.trained_outliers = form.trained_outliers;
  }
  return info;
}

// Type of a float tensor of an int8 artifact: bf16 for the head, or for the embedding if it is also the head; f32 for
// all others.
DType FloatTypeBesideInt8(const TensorSpec& spec, const model::ModelConfig& config) {
  const bool is_head =
      spec.role == model::TensorRole::kHead || (spec.role == model::TensorRole::kEmbedding && config.tied_embeddings);
  return is_head ? DType::kBF16 : DType::kF32;
}

template <typename T>
std::string_view AsText(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

}  // namespace

absl::StatusOr<model::ArtifactInfo> MakeTrainedModel(base::FileSystem& files, const model::ModelConfig& config,
                                                     const TrainedForm& form, std::span<const TrainedTensor> tensors,
                                                     const std::string& companions, const base::Json& provenance,
                                                     const std::string& target, const char* made_of,
                                                     const base::Cancelled& cancelled) {
  const std::vector<TensorSpec> specs = model::RequiredTensors(config);
  if (tensors.size() != specs.size()) {
    return absl::InvalidArgumentError(StrCat("model has ", tensors.size(), " tensors, wanted ", specs.size()));
  }
  model::ArtifactInfo info = InfoOf(form);
  info.source = made_of;
  info.provenance = provenance;
  const bool int8 = info.format == Format::kInt8;
  std::vector<model::TensorPlan> plan;
  plan.reserve(specs.size());
  for (const TensorSpec& spec : specs) {
    if (model::IsQuantized(spec, config, info)) {
      plan.push_back({spec.name, DType::kI8, spec.shape});
      plan.push_back({spec.name + model::kInt8ScaleSuffix, DType::kF32, {spec.shape[0]}});
    } else {
      plan.push_back({spec.name, int8 ? FloatTypeBesideInt8(spec, config) : form.dtype, spec.shape});
    }
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto writer, model::ArtifactWriter::Create(files, target, std::move(plan)));
  std::map<std::string, const TrainedTensor*> by_name;
  for (std::size_t i = 0; i < specs.size(); ++i) by_name[specs[i].name] = &tensors[i];
  std::vector<TensorSpec> in_file = specs;
  model::SortForWriter(writer->tensors(), in_file);
  for (const TensorSpec& spec : in_file) {
    NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
    const TrainedTensor& tensor = *by_name[spec.name];
    if (int8 && FloatTypeBesideInt8(spec, config) == DType::kBF16) {
      NIBBLE_ASSIGN_OR_RETURN(
          const std::string rounded,
          model::ConvertFloats(tensor.values, DType::kF32, DType::kBF16, model::NumElements(spec.shape).value_or(0)));
      NIBBLE_RETURN_IF_ERROR(writer->tensors().Put(spec.name, rounded));
      continue;
    }
    NIBBLE_RETURN_IF_ERROR(writer->tensors().Put(spec.name, AsText(tensor.values)));
    if (!model::IsQuantized(spec, config, info)) continue;
    NIBBLE_RETURN_IF_ERROR(writer->tensors().Put(spec.name + model::kInt8ScaleSuffix, AsText(tensor.scales)));
  }
  NIBBLE_RETURN_IF_ERROR(writer->CopyCompanions(companions));
  return writer->Finish(config, std::move(info));
}

}  // namespace nibble::convert
