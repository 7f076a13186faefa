#include "server/trainer/merge_aware_model.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/trainer/adapter_parameters.h"
#include "server/trainer/coded_model.h"
#include "server/trainer/merged_linear.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using model::LinearKind;
using torch::Tensor;

class MergedLinears : public CodedLinears {
 public:
  MergedLinears(std::shared_ptr<const model::LoadedModel> base, const AdapterOptions& options,
                const kernels::Stream& stream)
      : base_(std::move(base)), options_(options), stream_(stream) {}

  Sources sources() const override { return Sources::kNone; }

  void AddLayer(const std::array<Source, model::kNumLinearKinds>& sources) override {
    const std::size_t l = layers_.size();
    if (l == 0) MakeScratch();  // all layers have the same shapes
    auto& layer = layers_.emplace_back();
    for (std::size_t k = 0; k < sources.size(); ++k) {
      const auto kind = static_cast<LinearKind>(k);
      MergedWeight& linear = layer[k];
      linear.base = base_->weights().layers[l].linears[k].nf4;
      linear.bias = sources[k].bias;
      const auto number = static_cast<std::int64_t>(l);
      const std::optional<model::LinearAdapter> adapter = options_.adapter.On(model::ModulePath(number, kind));
      if (!adapter.has_value()) continue;
      linear.scaling = adapter->scaling;
      const AdapterMatrices made =
          parameters_.Add(options_, number, kind, adapter->rank, linear.base.rows, linear.base.cols);
      linear.lora_a = made.a;
      linear.lora_b = made.b;
    }
  }
  void AddParameters(std::vector<Parameter>& parameters) override { parameters_.AppendTo(parameters); }
  void ReleaseGradients() override {
    parameters_.ReleaseGradients();
    scratch_ = {};
  }

  void Refresh(std::int64_t layer) override {
    for (MergedWeight& linear : layers_[static_cast<std::size_t>(layer)]) {
      // The form of a frozen linear does not change.
      if (linear.lora_a.defined() || !linear.merged.tiles.defined()) linear.Merge(scratch_, stream_);
    }
  }
  bool recomputes_inputs() const override { return true; }
  const CodedRowOptions& rows() const override { return rows_; }
  Tensor Apply(const CodedInput& input, std::int64_t layer, LinearKind kind, std::uint64_t /*draw*/,
               TrainingContext& context) override {
    return ApplyMergedLinear(WithRows(input, rows_, context), Linear(layer, kind), context);
  }
  void Serve(std::int64_t layer, LinearKind kind, model::LinearWeight& weight) override {
    weight.kind = model::LinearWeight::Kind::kInt8;
    weight.int8 = Linear(layer, kind).merged.view();
  }

 private:
  void MakeScratch() {
    std::int64_t largest = 0;
    for (const model::LinearWeight& linear : base_->weights().layers[0].linears) {
      largest = std::max(largest, linear.nf4.rows * linear.nf4.cols);
    }
    scratch_.values = torch::empty({largest}, torch::kFloat32);
    scratch_.delta = torch::empty({largest}, torch::kFloat32);
  }
  const MergedWeight& Linear(std::int64_t layer, LinearKind kind) const {
    return layers_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(kind)];
  }

  const std::shared_ptr<const model::LoadedModel> base_;
  const AdapterOptions options_;
  const CodedRowOptions rows_ = {.max_outliers = kernels::kDefaultOutliers};  // as a conversion takes by default
  const kernels::Stream stream_;
  std::vector<std::array<MergedWeight, model::kNumLinearKinds>> layers_;
  MergeScratch scratch_;
  AdapterParameters parameters_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ExactModel>> MakeMergeAwareModel(std::shared_ptr<const model::LoadedModel> base,
                                                                const AdapterOptions& options,
                                                                const kernels::Stream& stream) {
  if (base->info().format != model::Format::kNf4) {
    return absl::InvalidArgumentError(
        base::StrCat("merge-aware qlora trains on an nf4 base, got ", model::Name(base->info().format)));
  }
  if (options.adapter.dropout > 0) {
    return absl::InvalidArgumentError("merge-aware qlora has no dropout: its forward pass is the merged model's");
  }
  if (options.adapter.dora) return absl::InvalidArgumentError("merge-aware qlora has no DoRA");
  NIBBLE_ASSIGN_OR_RETURN(const auto artifact, model::Artifact::Open(base->directory()));
  // Read before `base` moves into the linears.
  const model::ModelConfig& config = base->config();
  const std::int64_t max_positions = base->max_positions();
  const kernels::DType embedding_dtype = base->weights().embedding.dtype;  // which a conversion keeps
  return MakeCodedModel(*artifact, config,
                        {.adapter = options,
                         .bf16_backward = options.bf16_compute,
                         .activation_checkpointing = options.activation_checkpointing,
                         .max_positions = max_positions,
                         .kv_dtype = kernels::DType::kBF16,
                         .embedding_dtype = embedding_dtype,
                         .cancelled = options.cancelled},
                        std::make_unique<MergedLinears>(std::move(base), options, stream), stream);
}

}  // namespace nibble::trainer
