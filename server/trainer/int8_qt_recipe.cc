// Int8 quantized training: trains the linears in int8, without a float copy, and the other weights in f32. The result
// is the int8 model that is served.
#include <vector>

#include "server/trainer/int8_qt_model.h"
#include "server/trainer/recipe.h"
#include "server/trainer/weights_recipe.h"

namespace nibble::trainer {
namespace {

class Int8QtRecipe : public ExactRecipe {
 public:
  explicit Int8QtRecipe(const RecipeContext& context) : ExactRecipe(context) {}

  absl::Status Prepare() {
    const jobs::Int8QtMethod& method = spec_.int8_qt;
    NIBBLE_ASSIGN_OR_RETURN(const auto base, OpenBase());
    NIBBLE_ASSIGN_OR_RETURN(model_, MakeInt8QtModel(*base,
                                                    {.stochastic_rounding = method.stochastic_rounding,
                                                     .one_scale = method.scale == "tensor",
                                                     .float_rows = method.compute == "float",
                                                     .max_outliers = static_cast<int>(method.act_outliers),
                                                     .bf16_compute = method.compute_dtype == "bf16",
                                                     .activation_checkpointing = spec_.run.activation_checkpointing,
                                                     .random_init = method.init == "random",
                                                     .init_seed = static_cast<std::uint64_t>(spec_.run.seed),
                                                     .max_positions = max_positions(),
                                                     .cancelled = context_.cancelled},
                                                    context_.stream));
    return absl::OkStatus();
  }

  absl::StatusOr<model::ArtifactInfo> Write(const base::Json& provenance, const std::string& directory) override {
    return WriteTrained(model_->Values(),
                        {.trained_outliers = static_cast<int>(spec_.int8_qt.act_outliers),
                         .weight_only = spec_.int8_qt.compute == "float",
                         .dtype = kernels::DType::kI8},
                        provenance, directory);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Recipe>> MakeInt8QtRecipe(const RecipeContext& context) {
  return MakePrepared<Int8QtRecipe>(context);
}

}  // namespace nibble::trainer
