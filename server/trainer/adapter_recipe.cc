#include "server/trainer/adapter_recipe.h"

#include <map>
#include <span>
#include <string>
#include <vector>

#include "server/base/process_memory.h"
#include "server/base/status_macros.h"
#include "server/convert/convert.h"
#include "server/jobs/lora_method.h"
#include "server/model/replay.h"
#include "server/model/saved_modules.h"
#include "server/model/trainer_logprobs.h"
#include "server/trainer/int8_adapter_model.h"
#include "server/trainer/merge_aware_model.h"

namespace nibble::trainer {

absl::Status AdapterRecipe::LoadBase(const model::Artifact& source, const std::string& directory,
                                     const jobs::LoraMethod& method, bool merge_aware) {
  NIBBLE_ASSIGN_OR_RETURN(
      base_,
      model::LoadedModel::Load(directory, {.max_positions = spec_.data.max_seq_len, .cancelled = context_.cancelled},
                               context_.stream));
  config_ = base_->config();
  max_positions_ = base_->max_positions();
  text_directory_ = base_->directory();
  base_digest_ = base_->info().weights_digest;
  base_is_int8_ = base_->info().format == model::Format::kInt8;
  NIBBLE_ASSIGN_OR_RETURN(adapter_, jobs::AdapterOf(method));
  adapter_.ensure_weight_tying = model::SavesTiedEmbedding(config_, adapter_);
  const std::string source_name = model::SourceName(source.info());
  adapter_.base_model_name_or_path = source_name.empty() ? spec_.base_model : source_name;
  const AdapterOptions options = {.adapter = adapter_,
                                  .init_seed = static_cast<std::uint64_t>(method.seed),
                                  .lora_plus_ratio = method.lora_plus_ratio,
                                  .dropout_seed = static_cast<std::uint64_t>(spec_.run.seed),
                                  .bf16_compute = method.compute_dtype == "bf16",
                                  .activation_checkpointing = spec_.run.activation_checkpointing,
                                  .cancelled = context_.cancelled};
  if (merge_aware) {
    NIBBLE_ASSIGN_OR_RETURN(exact_, MakeMergeAwareModel(base_, options, context_.stream));
  } else if (base_is_int8_) {
    NIBBLE_ASSIGN_OR_RETURN(exact_, MakeInt8AdapterModel(base_, options, context_.stream));
  } else {
    NIBBLE_ASSIGN_OR_RETURN(model_, AdapterModel::Create(base_, options, context_.stream));
  }
  return absl::OkStatus();
}

absl::StatusOr<model::ArtifactInfo> AdapterRecipe::Write(const base::Json& provenance, const std::string& directory) {
  NIBBLE_ASSIGN_OR_RETURN(const auto base, model::Artifact::Open(text_directory_));
  std::map<std::string, const Parameter*> by_name;
  for (const Parameter& parameter : model().parameters()) by_name[parameter.name] = &parameter;
  std::vector<std::vector<float>> values;
  for (const model::TensorPlan& tensor : model::AdapterTensors(config_, adapter_)) {
    const std::span<const float> trained = by_name.at(tensor.name)->value.f32();
    values.emplace_back(trained.begin(), trained.end());
  }
  return convert::MakeLoraModel(context_.files, *base, adapter_, values, provenance, directory, "job",
                                context_.cancelled);
}

// If training uses the arithmetic of the served model (exact_), training makes the record. Otherwise the served model
// is the merged int8 model, which differs from the base with its adapter, so the serving instantiation makes the
// record.
absl::StatusOr<model::Record> AdapterRecipe::MakeRecord(const model::LoadedModel& served,
                                                        const std::vector<std::vector<std::int32_t>>& sequences) {
  if (exact_ != nullptr) return RecordOfTraining(*exact_, served, context_.stream.device, sequences);
  return model::MakeRecord(served, sequences, context_.stream, context_.cancelled);
}

absl::Status AdapterRecipe::WriteLogprobs(const std::vector<std::vector<std::int32_t>>& sequences,
                                          const std::string& directory) {
  // Training computed the bits of the served model, so the record shows more than logprobs would.
  if (exact_ != nullptr) return absl::OkStatus();
  model::TrainerLogprobs trained;
  for (const std::vector<std::int32_t>& tokens : sequences) {
    auto& sequence = trained.sequences.emplace_back();
    sequence.token_ids = tokens;
    NIBBLE_ASSIGN_OR_RETURN(sequence.logprobs, model_->TrainingLogprobs(tokens));
  }
  return model::WriteTrainerLogprobs(context_.files, directory, trained);
}

void AdapterRecipe::Release() {
  if (exact_ != nullptr) {
    exact_->ReleaseGradients();
  } else {
    model_->Release();
  }
  base_.reset();
  base::ReturnFreeMemory();  // small pieces that training has freed
}

}  // namespace nibble::trainer
