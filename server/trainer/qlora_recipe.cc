// QLoRA: an adapter on an nf4 base, served merged as int8.
#include "server/base/clock.h"
#include "server/base/ids.h"
#include "server/base/process_memory.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/convert.h"
#include "server/model/replay.h"
#include "server/model/trainer_logprobs.h"
#include "server/store/base_cache.h"
#include "server/trainer/qlora_model.h"
#include "server/trainer/recipe.h"

namespace nibble::trainer {
namespace {

// Suffix of keys in the cache. Change the number when conversion makes other bytes from the same model.
constexpr char kNf4Key[] = "-nf4-1";

class QLoraRecipe : public Recipe {
 public:
  explicit QLoraRecipe(const RecipeContext& context) : context_(context), spec_(context.order.spec) {}

  absl::Status Prepare() {
    NIBBLE_ASSIGN_OR_RETURN(const auto source, model::Artifact::Open(context_.order.base_model_directory));
    NIBBLE_ASSIGN_OR_RETURN(const std::string directory, Nf4Base(*source));
    NIBBLE_ASSIGN_OR_RETURN(
        base_,
        model::LoadedModel::Load(directory, {.max_positions = spec_.data.max_seq_len, .cancelled = context_.cancelled},
                                 context_.stream));
    QLoraOptions options;
    options.adapter.rank = spec_.qlora.r;
    options.adapter.alpha = spec_.qlora.alpha;
    options.adapter.dropout = spec_.qlora.dropout;
    options.adapter.rslora = spec_.qlora.use_rslora;
    const std::string source_name = model::SourceName(source->info());
    options.adapter.base_model_name_or_path = source_name.empty() ? spec_.base_model : source_name;
    for (int k = 0; k < model::kNumLinearKinds; ++k) {
      const auto kind = static_cast<model::LinearKind>(k);
      for (const std::string& name : spec_.qlora.target_modules) {
        if (name == model::ShortName(kind)) options.adapter.targets.push_back(kind);
      }
    }
    options.init_seed = static_cast<std::uint64_t>(spec_.qlora.seed);
    options.lora_plus_ratio = spec_.qlora.lora_plus_ratio;
    options.dropout_seed = static_cast<std::uint64_t>(spec_.run.seed);
    options.bf16_compute = spec_.qlora.compute_dtype == "bf16";
    options.activation_checkpointing = spec_.run.activation_checkpointing;
    options.cancelled = context_.cancelled;
    config_ = base_->config();
    max_positions_ = base_->max_positions();
    text_directory_ = base_->directory();
    base_digest_ = base_->info().weights_digest;
    adapter_ = options.adapter;
    NIBBLE_ASSIGN_OR_RETURN(model_, QLoraModel::Create(base_, options, context_.stream));
    return absl::OkStatus();
  }

  TrainingModel& model() override { return *model_; }
  const model::ModelConfig& config() const override { return config_; }
  std::int64_t max_positions() const override { return max_positions_; }
  const std::string& text_directory() const override { return text_directory_; }
  const std::string& base_digest() const override { return base_digest_; }

  const model::AdapterConfig* adapter() const override { return &adapter_; }

  absl::StatusOr<model::ArtifactInfo> Write(const base::Json& provenance, const std::string& directory) override {
    NIBBLE_ASSIGN_OR_RETURN(const auto base, model::Artifact::Open(text_directory_));
    std::vector<std::vector<float>> values;
    for (const Parameter& parameter : model_->parameters())
      values.emplace_back(parameter.value.f32().begin(), parameter.value.f32().end());
    return convert::MakeLoraModel(context_.files, *base, adapter_, values, provenance, directory, "job",
                                  context_.cancelled);
  }

  model::Format served_format() const override { return model::Format::kInt8; }
  // Merged int8 is another model than nf4 with its adapter, so the serving instantiation makes the record.
  absl::StatusOr<model::Record> MakeRecord(const model::LoadedModel& served,
                                           const std::vector<std::vector<std::int32_t>>& sequences) override {
    return model::MakeRecord(served, sequences, context_.stream, context_.cancelled);
  }

  absl::Status WriteLogprobs(const std::vector<std::vector<std::int32_t>>& sequences,
                             const std::string& directory) override {
    model::TrainerLogprobs trained;
    for (const std::vector<std::int32_t>& tokens : sequences) {
      auto& sequence = trained.sequences.emplace_back();
      sequence.token_ids = tokens;
      NIBBLE_ASSIGN_OR_RETURN(sequence.logprobs, model_->TrainingLogprobs(tokens));
    }
    return model::WriteTrainerLogprobs(context_.files, directory, trained);
  }

  void Release() override {
    model_->Release();
    base_.reset();
    base::ReturnFreeMemory();  // small pieces that training has freed
  }

  absl::Status Clean() override {
    if (cached_ != nullptr) {
      cached_.reset();
      // The job is done, so an error does not matter: the next job trims the cache again.
      Cache().Trim().IgnoreError();
    }
    return scratch_.empty() ? absl::OkStatus() : context_.files.RemoveAll(scratch_);
  }

 private:
  store::BaseCache Cache() const {
    return {context_.files,
            context_.order.base_cache_directory,
            {.max_bytes = static_cast<std::uint64_t>(context_.order.base_cache_bytes),
             .min_free_bytes = static_cast<std::uint64_t>(context_.order.min_free_bytes)}};
  }

  absl::Status Quantize(const model::Artifact& source, const std::string& directory) {
    const absl::Duration began = base::RealClock().Monotonic();
    NIBBLE_RETURN_IF_ERROR(
        convert::ConvertModel(context_.files, source, directory,
                              {.to = model::Format::kNf4, .measure_errors = false, .cancelled = context_.cancelled},
                              context_.stream)
            .status());
    return context_.log(
        base::StrCat("base quantized to nf4 in ", absl::ToDoubleSeconds(base::RealClock().Monotonic() - began), " s"));
  }

  // The directory of the nf4 base: the source itself, a cached form, or one that is made now. The bytes are the same
  // each time.
  absl::StatusOr<std::string> Nf4Base(const model::Artifact& source) {
    if (source.info().format == model::Format::kNf4) return source.directory();
    // The server removes files with such names when the attempt is over.
    const std::string temporary = base::TemporaryName(base::JoinPath(context_.directory, "base.nf4"));
    if (!context_.order.base_cache_directory.empty()) {
      store::BaseCache cache = Cache();
      // The manifest's digest also covers the tokenizer, of which the nf4 form has a copy.
      NIBBLE_ASSIGN_OR_RETURN(const store::Manifest manifest, store::ReadManifest(context_.files, source.directory()));
      const std::string key = base::StrCat(manifest.digest, kNf4Key);
      NIBBLE_ASSIGN_OR_RETURN(cached_, cache.Find(key, context_.cancelled));
      if (cached_ != nullptr) {
        NIBBLE_RETURN_IF_ERROR(context_.log("base taken from the cache of quantized bases"));
        return cached_->path();
      }
      auto pending = store::PendingDirectory::Create(context_.files, cache.Path(key), temporary);
      if (pending.ok()) {
        NIBBLE_RETURN_IF_ERROR(Quantize(source, pending->path()));
        NIBBLE_ASSIGN_OR_RETURN(cached_, cache.Add(key, *std::move(pending), context_.cancelled));
        return cached_->path();
      }
      // AlreadyExists: a damaged entry that another attempt still uses. This attempt makes its own base.
      if (!absl::IsAlreadyExists(pending.status())) return pending.status();
    }
    scratch_ = temporary;
    NIBBLE_RETURN_IF_ERROR(Quantize(source, scratch_));
    return scratch_;
  }

  const RecipeContext context_;
  const jobs::JobSpec& spec_;
  std::string scratch_;                              // the nf4 base, if it is not cached
  std::unique_ptr<store::BaseCache::Entry> cached_;  // the nf4 base, if it is cached
  std::shared_ptr<const model::LoadedModel> base_;
  model::ModelConfig config_;
  std::int64_t max_positions_ = 0;
  std::string text_directory_;
  std::string base_digest_;
  model::AdapterConfig adapter_;
  std::unique_ptr<QLoraModel> model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Recipe>> MakeQLoraRecipe(const RecipeContext& context) {
  return MakePrepared<QLoraRecipe>(context);
}

}  // namespace nibble::trainer
