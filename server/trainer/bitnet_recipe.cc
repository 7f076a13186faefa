// BitNet: trains all weights in the arithmetic of the ternary artifact that is served.
#include "server/model/bitnet_shape.h"
#include "server/trainer/bitnet_model.h"
#include "server/trainer/recipe.h"
#include "server/trainer/weights_recipe.h"

namespace nibble::trainer {
namespace {

kernels::Ste SteOf(const std::string& name) {
  if (name == "round_only") return kernels::Ste::kRoundOnly;
  return name == "clipped" ? kernels::Ste::kClipped : kernels::Ste::kIdentity;
}

class BitNetRecipe : public ExactRecipe {
 public:
  explicit BitNetRecipe(const RecipeContext& context) : ExactRecipe(context) {}

  absl::Status Prepare() {
    const jobs::BitNetQatMethod& bitnet = spec_.bitnet_qat;
    NIBBLE_ASSIGN_OR_RETURN(const auto base, OpenBase());
    SetConfig(model::BitNetShape(base->config(), bitnet.preset));
    const model::BitNetInfo info = Info();
    BitNetOptions options;
    options.act_bits = info.act_bits;
    options.scaling = info.scaling;
    options.float_linears = info.float_linears;
    options.act_per_tensor = bitnet.act_scale == "per_tensor";
    options.ste = SteOf(bitnet.ste);
    options.scale_grad = bitnet.scale_grad;
    if (bitnet.has_ramp()) options.ramp = {.from = bitnet.warmup_lambda->from, .steps = bitnet.warmup_lambda->steps};
    options.random_init = bitnet.init == "random";
    options.init_seed = static_cast<std::uint64_t>(spec_.run.seed);
    options.bf16_backward = bitnet.compute_dtype == "bf16";
    options.bf16_masters = bitnet.master_dtype == "bf16";
    options.activation_checkpointing = spec_.run.activation_checkpointing;
    options.cancelled = context_.cancelled;
    options.max_positions = max_positions();
    NIBBLE_ASSIGN_OR_RETURN(model_, MakeBitNetModel(*base, config(), options, context_.stream));
    if (options.act_per_tensor) {
      return context_.warn("PER_TENSOR_ACTIVATIONS",
                           "bitnet_qat.act_scale per_tensor: rows share a scale in training, but the served model has "
                           "one scale per token. Evaluations show the effect. `models convert` makes the record that "
                           "`models verify` replays");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<model::ArtifactInfo> Write(const base::Json& provenance, const std::string& directory) override {
    return WriteTrained(model_->Values(),
                        {.bitnet = Info(),
                         .kv_dtype = model::kBitNetFloatType,
                         .dtype = convert::FloatType(spec_.bitnet_qat.master_dtype)},
                        provenance, directory);
  }

  model::Format served_format() const override { return model::Format::kTernary; }

  // Rows that share a scale in training have other logits than served rows, which each have their own scale.
  bool predicts_record() const override { return spec_.bitnet_qat.act_scale != "per_tensor"; }

 private:
  model::BitNetInfo Info() const {
    const jobs::BitNetQatMethod& bitnet = spec_.bitnet_qat;
    return model::BitNetInfoOf(bitnet.preset, static_cast<int>(bitnet.act_bits), bitnet.modules_to_not_convert);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Recipe>> MakeBitNetRecipe(const RecipeContext& context) {
  return MakePrepared<BitNetRecipe>(context);
}

}  // namespace nibble::trainer
