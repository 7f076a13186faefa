// QLoRA: an adapter on an nf4 base, served merged as int8. With merge_aware_int8, training uses the arithmetic of that
// int8 model.
#include "server/base/clock.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/convert.h"
#include "server/jobs/qlora_method.h"
#include "server/store/base_cache.h"
#include "server/trainer/adapter_recipe.h"
#include "server/trainer/recipe.h"

namespace nibble::trainer {
namespace {

class QLoraRecipe : public AdapterRecipe {
 public:
  explicit QLoraRecipe(const RecipeContext& context) : AdapterRecipe(context) {}

  absl::Status Prepare() {
    NIBBLE_ASSIGN_OR_RETURN(const auto source, model::Artifact::Open(context_.order.base_model_directory));
    NIBBLE_ASSIGN_OR_RETURN(const std::string directory, Nf4Base(*source));
    return LoadBase(*source, directory, spec_.qlora, spec_.qlora.merge_aware_int8);
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
    NIBBLE_RETURN_IF_ERROR(convert::ConvertModel(context_.files, source, directory,
                                                 {.to = model::Format::kNf4,
                                                  .nf4 = jobs::Nf4OptionsOf(spec_.qlora),
                                                  .measure_errors = false,
                                                  .cancelled = context_.cancelled},
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
      NIBBLE_ASSIGN_OR_RETURN(const store::Manifest manifest, store::ReadManifest(context_.files, source.directory()));
      const model::Nf4Options options = jobs::Nf4OptionsOf(spec_.qlora);
      const std::string key = store::Nf4BaseKey(manifest.digest, model::KeyOf(options));
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

  std::string scratch_;                              // the nf4 base, if it is not cached
  std::unique_ptr<store::BaseCache::Entry> cached_;  // the nf4 base, if it is cached
};

}  // namespace

absl::StatusOr<std::unique_ptr<Recipe>> MakeQLoraRecipe(const RecipeContext& context) {
  return MakePrepared<QLoraRecipe>(context);
}

}  // namespace nibble::trainer
