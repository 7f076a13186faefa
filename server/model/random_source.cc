// A model without weights of its own: config.json and a tokenizer, which is read or trained.
#include <utility>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/file_names.h"
#include "server/model/float_convert.h"
#include "server/model/hf_directory.h"
#include "server/model/import.h"
#include "server/model/random_weights.h"
#include "server/model/safetensors.h"
#include "server/model/weight_source.h"

namespace nibble::model {
namespace {

using base::StrCat;
using kernels::DType;

class RandomSource : public WeightSource {
 public:
  explicit RandomSource(const RandomInit& init) : WeightSource("random"), init_(init) {}

  absl::Status Open(base::FileSystem& files, const std::string& directory) {
    NIBBLE_RETURN_IF_ERROR(CheckNoWeights(files, directory));
    NIBBLE_ASSIGN_OR_RETURN(base::Json json, ReadHfConfigJson(files, directory));
    if (init_.train_tokenizer && json.is_object()) {
      // Ids of another tokenizer, which may exceed the size of the vocabulary.
      for (const char* id : {"bos_token_id", "eos_token_id", "pad_token_id"}) json.erase(id);
    }
    NIBBLE_ASSIGN_OR_RETURN(files_, ReadCompanions(files, directory));
    NIBBLE_RETURN_IF_ERROR(CheckTokenizerFile());
    NIBBLE_ASSIGN_OR_RETURN(config_, ParseHfConfig(json));
    if (init_.train_tokenizer) NIBBLE_RETURN_IF_ERROR(TrainTokenizer());
    std::uint64_t number = 0;
    for (const TensorSpec& spec : RequiredTensors(config_)) numbers_[spec.name] = number++;
    return absl::OkStatus();
  }

  // The values of a job of the method full with `init` random and the same seed (server/trainer/full_model.h).
  absl::StatusOr<std::string> Read(const TensorSpec& spec, DType dtype) const override {
    const std::int64_t count = NumElements(spec.shape).value_or(0);
    std::vector<float> values(static_cast<std::size_t>(count));
    DrawTensor(spec, values, init_.seed, numbers_.at(spec.name), init_.stream);
    return FromFloats(values, dtype);
  }
  std::int64_t ReadBytes(const TensorSpec& spec, DType dtype) const override {
    constexpr std::int64_t kFloatBytes = sizeof(float);
    return NumElements(spec.shape).value_or(0) * (kFloatBytes + kernels::SizeOf(dtype));
  }

 private:
  absl::Status CheckNoWeights(base::FileSystem& files, const std::string& directory) const {
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
    for (const std::string& name : names) {
      if (name.ends_with(".safetensors") || name.ends_with(".gguf")) {
        return absl::InvalidArgumentError(StrCat("random_init: is set, but the files contain the weights ", name));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckTokenizerFile() const {
    const bool has_tokenizer = files_.contains(kTokenizerFile);
    if (init_.train_tokenizer && has_tokenizer) {
      return absl::InvalidArgumentError(
          "random_init.tokenizer_dataset: is set, but the files contain a tokenizer.json");
    }
    if (init_.train_tokenizer || has_tokenizer) return absl::OkStatus();
    return base::WithReason(absl::NotFoundError("tokenizer.json is missing, and no tokenizer_dataset is set"),
                            "NO_TOKENIZER");
  }

  absl::Status TrainTokenizer() {
    NIBBLE_ASSIGN_OR_RETURN(TrainedTokenizer trained, init_.train_tokenizer(config_));
    files_[kTokenizerFile] = std::move(trained.json);
    files_.erase(kGenerationConfigFile);  // its ids are those of another tokenizer too
    config_.eos_token_ids = {trained.eos_token_id};
    if (files_.contains(kTokenizerConfigFile)) return absl::OkStatus();
    const base::Json tokenizer_config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                         {"eos_token", trained.eos_token},
                                         {"clean_up_tokenization_spaces", false}};
    files_[kTokenizerConfigFile] = base::Dump(tokenizer_config);
    return absl::OkStatus();
  }

  const RandomInit& init_;
  std::map<std::string, std::uint64_t> numbers_;  // of each tensor, in the order of RequiredTensors
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> MakeRandomModel(base::FileSystem& files, const std::string& directory,
                                                              const RandomInit& init) {
  auto source = std::make_unique<RandomSource>(init);
  NIBBLE_RETURN_IF_ERROR(source->Open(files, directory));
  return std::unique_ptr<WeightSource>(std::move(source));
}

}  // namespace nibble::model
