// A checkpoint of a qlora job as a trainer leaves it, without the optimizer's state.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "server/base/files.h"
#include "server/convert/checkpoint_model.h"
#include "server/model/adapter.h"
#include "server/model/artifact.h"
#include "server/model/float_convert.h"
#include "server/model/safetensors_writer.h"
#include "tests/server/model/peft_files.h"

namespace nibble::testing_support {

// Writes the files of an adapter for the model in `base_directory` into `directory`, without a manifest, which a commit
// adds.
inline void WriteAdapterCheckpoint(const std::string& directory, const std::string& base_directory) {
  const auto base_model = model::Artifact::Open(base_directory);
  ASSERT_TRUE(base_model.ok()) << base_model.status();
  model::AdapterConfig config;
  config.rank = 4;
  config.alpha = 16;
  config.targets = {model::LinearKind::kQ, model::LinearKind::kDown};
  const auto plan = model::AdapterTensors((*base_model)->config(), config);
  model::WritePeftFiles(directory, model::ToPeftConfig(config), plan, model::AdapterValues(plan));
  ASSERT_TRUE(base::RealFileSystem()
                  .Rename(base::JoinPath(directory, model::kAdapterWeightsFile),
                          base::JoinPath(directory, convert::kCheckpointTensorsFile))
                  .ok());
}

}  // namespace nibble::testing_support
