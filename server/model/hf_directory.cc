#include "server/model/hf_directory.h"

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/artifact_writer.h"
#include "server/model/file_names.h"
#include "server/model/model_config.h"

namespace nibble::model {
namespace {

using base::StrCat;

absl::StatusOr<base::Json> ReadJson(base::FileSystem& files, const std::string& directory, const char* name) {
  const std::string path = base::JoinPath(directory, name);
  if (!files.Exists(path)) return absl::NotFoundError(StrCat(name, " is missing"));
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, files.Read(path, kMaxConfigJsonBytes));
  auto json = base::ParseJson(text);
  if (!json.ok()) return absl::InvalidArgumentError(StrCat(name, ": ", base::ToStd(json.status().message())));
  return json;
}

}  // namespace

absl::StatusOr<base::Json> ReadHfConfigJson(base::FileSystem& files, const std::string& directory) {
  NIBBLE_ASSIGN_OR_RETURN(base::Json json, ReadJson(files, directory, kConfigFile));
  if (!files.Exists(base::JoinPath(directory, kGenerationConfigFile))) return json;
  // generation_config.json lists the end tokens; config.json often has only one of several.
  NIBBLE_ASSIGN_OR_RETURN(const base::Json generation, ReadJson(files, directory, kGenerationConfigFile));
  const auto eos = generation.is_object() ? generation.find("eos_token_id") : generation.end();
  if (eos != generation.end() && !eos->is_null() && json.is_object()) json["eos_token_id"] = *eos;
  return json;
}

absl::StatusOr<std::map<std::string, std::string>> ReadCompanions(base::FileSystem& files,
                                                                  const std::string& directory) {
  std::map<std::string, std::string> companions;
  for (const char* name : kCompanionFiles) {
    const std::string path = base::JoinPath(directory, name);
    if (!files.Exists(path)) continue;
    NIBBLE_ASSIGN_OR_RETURN(companions[name], files.Read(path, kMaxCompanionBytes));
  }
  return companions;
}

}  // namespace nibble::model
