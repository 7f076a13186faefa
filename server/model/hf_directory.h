// The small files of a directory as transformers saves it. Included by server/model/*.cc only.
#pragma once
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/files.h"
#include "server/base/json.h"

namespace nibble::model {

// config.json; an eos_token_id in generation_config.json overrides its own. Errors: NotFound (no config.json),
// InvalidArgument (not JSON).
absl::StatusOr<base::Json> ReadHfConfigJson(base::FileSystem& files, const std::string& directory);

// Those of kCompanionFiles that the directory has: name -> content.
absl::StatusOr<std::map<std::string, std::string>> ReadCompanions(base::FileSystem& files,
                                                                  const std::string& directory);

}  // namespace nibble::model
