#include "server/registry/model_exporter.h"

#include <memory>
#include <string>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/export.h"
#include "server/registry/model_files.h"
#include "server/registry/operation_files.h"
#include "server/store/published_directory.h"

namespace nibble::registry {

using base::FieldError;
using base::StrCat;

namespace {

absl::Status WriteExport(base::FileSystem& files, const ExportRequest& request, const model::Artifact& artifact,
                         const std::string& target) {
  const auto max_shard_bytes = request.max_shard_bytes.has_value()
                                   ? static_cast<std::uint64_t>(*request.max_shard_bytes)
                                   : convert::kDefaultShardBytes;
  switch (*request.format) {
    case ExportFormat::kPeft: return convert::ExportPeft(files, artifact, target);
    case ExportFormat::kCompressedTensors:
      return convert::ExportCompressedTensors(files, artifact, target, max_shard_bytes);
    case ExportFormat::kHf:
    case ExportFormat::kHfBitNet: break;
  }
  return convert::ExportHf(files, artifact, target, request.linear_class.value_or(convert::HfBitNetClass::kBitLinear),
                           max_shard_bytes);
}

}  // namespace

absl::Status ModelExporter::Check(const ExportRequest& request) {
  NIBBLE_RETURN_IF_ERROR(CheckFormat(request));
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel source,
                          FindModel(*work_.state.models, work_.metrics, request.model));
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(source.info));
  if (request.format == ExportFormat::kHfBitNet && !info.bitnet.has_value()) {
    return FieldError("format",
                      StrCat("HF_BITNET is for BitNet models, \"", request.model, "\" is ", Name(info.format)));
  }
  if (request.format == ExportFormat::kPeft && info.format != model::Format::kLora) {
    return FieldError("format", StrCat("PEFT is for lora models, \"", request.model, "\" is ", Name(info.format)));
  }
  if (request.format == ExportFormat::kHf && info.format != model::Format::kF32 &&
      info.format != model::Format::kBF16 && info.format != model::Format::kTernary) {
    const bool merges = info.format == model::Format::kLora || info.format == model::Format::kNf4;
    const std::string how =
        merges ? StrCat("; convert it first: nibble models convert ", request.model, " --to bf16 --name NEW") : "";
    return FieldError("format", StrCat("HF is for f32, bf16 and ternary models, \"", request.model, "\" is ",
                                       Name(info.format), how));
  }
  if (request.format == ExportFormat::kCompressedTensors) NIBBLE_RETURN_IF_ERROR(convert::CheckCompressedTensors(info));
  if (request.linear_class.has_value() && info.format != model::Format::kTernary) {
    return FieldError("linear_class", StrCat("is for ternary models, \"", request.model, "\" is ", Name(info.format)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const ExportedFiles>> ModelExporter::Export(const ExportRequest& request,
                                                                           OperationScope& scope) {
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel source,
                          FindModel(*work_.state.models, work_.metrics, request.model));
  NIBBLE_ASSIGN_OR_RETURN(const auto pin, work_.state.models->PinModel(request.model, "an export"));
  scope.Progress("read", 0, 1);
  NIBBLE_RETURN_IF_ERROR(CheckModelFiles(*work_.state.models, work_.metrics, request.model, scope.stopped()));
  NIBBLE_ASSIGN_OR_RETURN(const auto artifact, model::Artifact::Open(source.directory));
  auto exported = std::make_shared<ExportedFiles>();
  exported->artifact_id = base::NewId("export");
  exported->directory = base::JoinPath(work_.state.paths.uploads(), exported->artifact_id);
  scope.Progress("write", 0, 1);
  OperationFiles files(work_.state.files, scope, work_.options.upload_limits.min_free_bytes);
  NIBBLE_RETURN_IF_ERROR(WriteExport(files, request, *artifact, exported->directory));
  NIBBLE_ASSIGN_OR_RETURN(const auto names, work_.state.files.List(exported->directory));
  for (const std::string& name : names) {
    NIBBLE_ASSIGN_OR_RETURN(const store::ManifestEntry entry, store::HashFile(base::JoinPath(exported->directory, name),
                                                                              scope.stopped(), files.digests()));
    exported->files.push_back(
        {.path = name, .size_bytes = static_cast<std::int64_t>(entry.size), .sha256 = entry.sha256});
  }
  // From here on the operation owns the files. They are removed when options.kept has passed since its end, or when it
  // is forgotten.
  scope.Hold(exported, work_.options.kept);
  base::MutexLock lock(mutex_);
  std::erase_if(exports_, [](const auto& one) { return one.second.expired(); });
  exports_[exported->artifact_id] = exported;
  return exported;
}

absl::StatusOr<std::shared_ptr<const ExportedFiles>> ModelExporter::Exported(const std::string& artifact_id) {
  {
    base::MutexLock lock(mutex_);
    const auto it = exports_.find(artifact_id);
    if (it != exports_.end()) {
      if (auto files = it->second.lock(); files != nullptr) return files;
    }
  }
  return base::WithReason(absl::NotFoundError("artifact_id: no such export; the files of an export are kept for an "
                                              "hour, and removed with its operation or when the server restarts"),
                          "ARTIFACT", {{"name", artifact_id.substr(0, 64)}});
}

}  // namespace nibble::registry
