// Writes the two files of a PEFT adapter, for tests that may corrupt them.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "server/base/files.h"
#include "server/model/adapter.h"
#include "server/model/float_convert.h"
#include "server/model/safetensors_writer.h"
#include "tests/support/random.h"

namespace nibble::model {

// One f32 vector per tensor of the plan, without zeros.
inline std::vector<std::vector<float>> AdapterValues(const std::vector<TensorPlan>& plan) {
  std::vector<std::vector<float>> values;
  for (const TensorPlan& tensor : plan) {
    values.push_back(support::NormalVector(values.size() + 1, tensor.shape[0] * tensor.shape[1], 0.1f));
  }
  return values;
}

// Writes the tensors of `plan`, in its types (f32 or bf16). Elements without a value are 1.
inline void WritePeftFiles(const std::string& directory, const base::Json& config, const std::vector<TensorPlan>& plan,
                           const std::vector<std::vector<float>>& values,
                           const std::map<std::string, std::string>& metadata = {{"format", "pt"}}) {
  base::FileSystem& files = base::RealFileSystem();
  ASSERT_TRUE(files.CreateDirectories(directory).ok());
  ASSERT_TRUE(base::WriteFileAtomically(files, base::JoinPath(directory, kAdapterConfigFile), base::Dump(config)).ok());
  const auto writer = SafetensorsWriter::Create(files, base::JoinPath(directory, kAdapterWeightsFile), plan, metadata);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (std::size_t i = 0; i < plan.size(); ++i) {
    std::size_t elements = 1;
    for (const std::int64_t size : plan[i].shape) elements *= static_cast<std::size_t>(size);
    std::vector<float> value = i < values.size() ? values[i] : std::vector<float>();
    value.resize(elements, 1.0f);
    ASSERT_TRUE((*writer)->Put(plan[i].name, FromFloats(value, plan[i].dtype)).ok());
  }
  ASSERT_TRUE((*writer)->Finish().ok());
}

}  // namespace nibble::model
