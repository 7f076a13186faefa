#include "server/jobs/job_digests.h"

#include <utility>

#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/store/published_directory.h"

namespace nibble::jobs {

using base::Json;

namespace {

// Sorted by name, as `sha256sum *` lists them.
constexpr const char* kTextAssets[] = {"chat_template.jinja", "tokenizer.json", "tokenizer_config.json"};

constexpr std::pair<const char*, std::string JobDigests::*> kFields[] = {
    {"config", &JobDigests::config},       {"data", &JobDigests::data}, {"eval_data", &JobDigests::eval_data},
    {"tokenizer", &JobDigests::tokenizer}, {"code", &JobDigests::code}, {"base_model", &JobDigests::base_model}};

// "" for a model without text assets.
std::string TextDigest(const store::Manifest& manifest) {
  std::string list;
  for (const char* name : kTextAssets) {
    for (const store::ManifestEntry& file : manifest.files) {
      if (file.name == name) list = base::StrCat(list, file.sha256, "  ", file.name, "\n");
    }
  }
  return list.empty() ? "" : base::Sha256Hex(list);
}

}  // namespace

Json ToJson(const JobDigests& digests) {
  Json json = Json::object();
  for (const auto& [key, field] : kFields) json[key] = digests.*field;
  return json;
}

absl::StatusOr<JobDigests> ParseJobDigests(const Json& json) {
  if (!json.is_object()) return absl::InvalidArgumentError("digests: is not an object");
  JobDigests digests;
  for (const auto& [key, field] : kFields) {
    NIBBLE_ASSIGN_OR_RETURN(digests.*field, base::GetString(json, key, "digests", ""));
  }
  return digests;
}

absl::StatusOr<JobDigests> MakeJobDigests(store::StateDirectory& state, const JobSpec& spec, const std::string& code) {
  JobDigests digests;
  digests.config = Digest(spec);
  digests.code = code;
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset train, state.datasets->Get(spec.train_dataset));
  digests.data = train.sha256;
  if (!spec.eval_dataset.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset eval, state.datasets->Get(spec.eval_dataset));
    digests.eval_data = eval.sha256;
  }
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel base_model, state.models->Get(spec.base_model));
  if (base_model.info.is_object()) {
    NIBBLE_ASSIGN_OR_RETURN(digests.base_model, base::GetString(base_model.info, "weights_digest", "nibble.json", ""));
  }
  NIBBLE_ASSIGN_OR_RETURN(const store::Manifest manifest, store::ReadManifest(state.files, base_model.directory));
  digests.tokenizer = TextDigest(manifest);
  return digests;
}

}  // namespace nibble::jobs
