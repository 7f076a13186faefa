// Makes an artifact from a training job's result: an adapter on its base, or all weights.
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/adapter_model.h"
#include "server/convert/convert.h"
#include "server/model/artifact_writer.h"
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
  NIBBLE_ASSIGN_OR_RETURN(const auto writer, model::ArtifactWriter::CreateOn(files, target, base, cancelled));
  NIBBLE_RETURN_IF_ERROR(writer->PutAdapter(base.config(), adapter, values));
  NIBBLE_RETURN_IF_ERROR(writer->CopyCompanions(base.directory()));
  model::ArtifactInfo info = base.info();
  info.format = Format::kLora;
  info.base_format = base.info().format;
  info.trained_outliers.reset();  // the adapter was trained with float products
  info.base_digest = base.info().weights_digest;
  info.source = made_of;
  info.recorded_by.clear();
  info.provenance = provenance;
  return writer->Finish(base.config(), std::move(info));
}

absl::StatusOr<model::ArtifactInfo> MakeTrainedModel(base::FileSystem& files, const model::ModelConfig& config,
                                                     const TrainedForm& form,
                                                     std::span<const std::span<const std::byte>> values,
                                                     const std::string& companions, const base::Json& provenance,
                                                     const std::string& target, const char* made_of,
                                                     const base::Cancelled& cancelled) {
  const std::vector<TensorSpec> specs = model::RequiredTensors(config);
  if (values.size() != specs.size()) {
    return absl::InvalidArgumentError(StrCat("model has ", values.size(), " tensors, wanted ", specs.size()));
  }
  std::vector<model::TensorPlan> plan;
  plan.reserve(specs.size());
  for (const TensorSpec& spec : specs) plan.push_back({spec.name, form.dtype, spec.shape});
  NIBBLE_ASSIGN_OR_RETURN(const auto writer, model::ArtifactWriter::Create(files, target, std::move(plan)));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
    NIBBLE_RETURN_IF_ERROR(
        writer->tensors().Put(specs[i].name, {reinterpret_cast<const char*>(values[i].data()), values[i].size()}));
  }
  NIBBLE_RETURN_IF_ERROR(writer->CopyCompanions(companions));
  model::ArtifactInfo info;
  info.format = form.dtype == DType::kBF16 ? Format::kBF16 : Format::kF32;
  info.bitnet = form.bitnet;
  info.kv_dtype = form.kv_dtype;
  info.trained_outliers = form.trained_outliers;
  info.source = made_of;
  info.provenance = provenance;
  return writer->Finish(config, std::move(info));
}

}  // namespace nibble::convert
