// The source of an import, independent of the file format. Only server/model/*.cc and tests include it.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "server/base/files.h"
#include "server/model/hf_bitnet.h"
#include "server/model/model_config.h"
#include "server/model/tensor_table.h"

namespace nibble::model {

struct RandomInit;

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  const ModelConfig& config() const { return config_; }
  // Contents of the files of kCompanionFiles (artifact_writer.h) that the source has, by name.
  const std::map<std::string, std::string>& files() const { return files_; }
  const std::vector<std::string>& ignored_tensors() const { return ignored_tensors_; }
  const char* kind() const { return kind_; }  // "huggingface", "gguf", "random"

  // is_bitnet: the linears are codes (is_ternary), or the float masters that codes are made from.
  bool is_ternary() const { return is_ternary_; }
  bool is_bitnet() const { return is_ternary_ || is_masters_; }
  // Linears of a BitNet source that stay float.
  const std::vector<LinearKind>& float_linears() const { return float_linears_; }

  // The tensor's bytes in dtype (f32 or bf16). Shapes were checked when the source was opened.
  virtual absl::StatusOr<std::string> Read(const TensorSpec& spec, kernels::DType dtype) const = 0;
  // For linears of a ternary source: codes [N, K] and their scale.
  virtual absl::StatusOr<TernaryValues> ReadTernary(const TensorSpec& spec) const {
    return absl::InternalError(spec.name + " is not ternary");
  }
  // Peak memory, in bytes, of Read or ReadTernary for this tensor, result included. Pages of mapped files do not count.
  virtual std::int64_t ReadBytes(const TensorSpec& spec, kernels::DType dtype) const = 0;

 protected:
  explicit WeightSource(const char* kind) : kind_(kind) {}

  const char* const kind_;
  ModelConfig config_;
  std::map<std::string, std::string> files_;
  std::vector<std::string> ignored_tensors_;
  bool is_ternary_ = false;
  bool is_masters_ = false;
  std::vector<LinearKind> float_linears_;
};

// These two check that every required tensor is present with its shape, and refuse any other tensor, except redundant
// ones such as stored rotary tables.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenHfDirectory(base::FileSystem& files, const std::string& directory);
absl::StatusOr<std::unique_ptr<WeightSource>> OpenGgufModel(const std::string& path);
// Reads the configuration and, unless init.train_tokenizer makes one, the tokenizer from `directory`. Draws the
// weights. `init` must outlive the source.
absl::StatusOr<std::unique_ptr<WeightSource>> MakeRandomModel(base::FileSystem& files, const std::string& directory,
                                                              const RandomInit& init);

}  // namespace nibble::model
