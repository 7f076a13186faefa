#include "server/registry/operation_mark.h"

#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/model/artifact.h"
#include "server/model/file_names.h"

namespace nibble::registry {

namespace {

constexpr std::uint64_t kMaxInfoBytes = 1u << 20;
constexpr char kOperation[] = "operation";  // {"name": "operations/op-...", "digest": SHA-256 of its request}

}  // namespace

absl::Status MarkMadeBy(base::FileSystem& files, const std::string& directory, const OperationIdentity& operation) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text,
                          files.Read(base::JoinPath(directory, model::kInfoFile), kMaxInfoBytes));
  NIBBLE_ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(text));
  NIBBLE_ASSIGN_OR_RETURN(model::ArtifactInfo info, model::ParseArtifactInfo(json));
  info.provenance[kOperation] = {{"name", operation.name}, {"digest", operation.digest}};
  return model::WriteArtifactInfo(files, directory, info);
}

bool IsMadeBy(const store::StoredModel& model, const OperationIdentity& operation) {
  const auto info = model::ParseArtifactInfo(model.info);
  if (!info.ok()) return false;
  const auto mark = info->provenance.find(kOperation);
  if (mark == info->provenance.end() || !mark->is_object()) return false;
  return base::GetString(*mark, "name", model::kInfoFile, "").value_or("") == operation.name &&
         base::GetString(*mark, "digest", model::kInfoFile, "").value_or("") == operation.digest;
}

}  // namespace nibble::registry
