#include "server/model/loaded_model.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "kernels/ops/attention/rope.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/dora.h"
#include "server/model/forget_pages.h"
#include "server/model/merged_rows.h"
#include "server/model/nf4_scales.h"
#include "server/model/stored_tensors.h"

namespace nibble::model {

using kernels::ConstMatrix;
using kernels::DType;

namespace {

constexpr std::int64_t kRoundedRows = 8;  // minimum rows per thread

}  // namespace

// Fills one LoadedModel. Errors name the tensor.
class LoadedModelBuilder {
 public:
  LoadedModelBuilder(LoadedModel& model, const kernels::Stream& stream)
      : model_(model),
        artifact_(*model.artifact_),
        config_(artifact_.config()),
        info_(artifact_.info()),
        stream_(stream) {}

  absl::Status Build(const LoadedModel::Options& options) {
    DecoderWeights& weights = model_.weights_;
    if (info_.is_masters()) {
      return base::WithReason(
          absl::FailedPreconditionError(
              "these are the master weights of a BitNet model: convert them to ternary to run them"),
          "RAW_MASTERS");
    }
    NIBBLE_RETURN_IF_ERROR(CheckInFeatures(config_, info_));
    const Format format = info_.weight_format();
    weights.input_dtype =
        format == Format::kNf4 || format == Format::kBF16 || info_.weight_only ? DType::kBF16 : DType::kF32;
    weights.kv_dtype = info_.kv_dtype;
    weights.act_outliers = info_.act_outliers;
    if (info_.format == Format::kTernary) {
      weights.act_quantize = {
          .min_absmax = kernels::kBitNetMinAbsmax, .bits = info_.bitnet->act_bits, .scaling = info_.bitnet->scaling};
    }
    NIBBLE_RETURN_IF_ERROR(Embedding());
    for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
      NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(options.cancelled));
      LayerWeights layer_weights;
      for (int n = 0; n < kNumNorms; ++n) {
        const auto norm = static_cast<Norm>(n);
        if (!HasNorm(config_, norm)) continue;
        NIBBLE_ASSIGN_OR_RETURN(layer_weights.norms[static_cast<std::size_t>(n)],
                                FloatVector(NormName(layer, norm), NormSize(config_, norm)));
      }
      for (int k = 0; k < kNumLinearKinds; ++k) {
        const auto kind = static_cast<LinearKind>(k);
        NIBBLE_ASSIGN_OR_RETURN(
            layer_weights.linears[static_cast<std::size_t>(k)],
            Linear(kind, ModulePath(layer, kind), OutFeatures(config_, kind), InFeatures(config_, kind)));
      }
      weights.layers.push_back(layer_weights);
    }
    NIBBLE_ASSIGN_OR_RETURN(weights.final_norm, FloatVector(kFinalNormName, config_.hidden_size));
    NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(options.cancelled));
    NIBBLE_RETURN_IF_ERROR(Head());
    return RopeTable(options);
  }

 private:
  template <typename T>
  absl::StatusOr<T*> Allocate(std::int64_t count) {
    const std::int64_t bytes = std::max<std::int64_t>(count * static_cast<std::int64_t>(sizeof(T)), 64);
    kernels::WeightBuffer buffer(bytes);
    if (buffer.data() == nullptr) {
      return base::WithReason(absl::ResourceExhaustedError(
                                  base::StrCat("loading ", artifact_.directory(), ": no memory for ", bytes, " bytes")),
                              "OUT_OF_DEVICE_MEMORY");
    }
    model_.resident_bytes_ += static_cast<std::uint64_t>(bytes);
    model_.memory_.push_back(std::move(buffer));
    return model_.memory_.back().template As<T>();
  }

  absl::StatusOr<TensorView> Tensor(const std::string& name, const std::vector<std::int64_t>& shape, DType dtype) {
    NIBBLE_ASSIGN_OR_RETURN(TensorView tensor, artifact_.Tensor(name));
    if (tensor.dtype != dtype || tensor.shape != shape) {
      std::string wanted;
      for (const std::int64_t size : shape) wanted += base::StrCat(wanted.empty() ? "" : ", ", size);
      return absl::DataLossError(base::StrCat(name, ": dtype ", Name(tensor.dtype), " or shape does not match, wanted ",
                                              Name(dtype), " [", wanted, "]"));
    }
    return tensor;
  }

  absl::StatusOr<const float*> FloatVector(const std::string& name, std::int64_t size) {
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<float> values, artifact_.FloatTensor(artifact_.InUse(name)));
    if (static_cast<std::int64_t>(values.size()) != size) {
      return absl::DataLossError(base::StrCat(name, ": has ", values.size(), " values, wanted ", size));
    }
    NIBBLE_ASSIGN_OR_RETURN(float* copy, Allocate<float>(size));
    std::memcpy(copy, values.data(), values.size() * sizeof(float));
    return copy;
  }

  // A float matrix in the mapped file.
  absl::StatusOr<ConstMatrix> MappedMatrix(const std::string& name, std::int64_t rows, std::int64_t cols) {
    NIBBLE_ASSIGN_OR_RETURN(const TensorView tensor, artifact_.Tensor(name));
    if ((tensor.dtype != DType::kF32 && tensor.dtype != DType::kBF16) ||
        tensor.shape != std::vector<std::int64_t>{rows, cols}) {
      return absl::DataLossError(base::StrCat(name, ": wanted f32 or bf16 [", rows, ", ", cols, "]"));
    }
    return kernels::MakeConstMatrix(tensor.bytes.data(), tensor.dtype, rows, cols);
  }
  // A float matrix that the model reads in the mapped file, so its bytes count as resident.
  absl::StatusOr<ConstMatrix> FloatMatrix(const std::string& name, std::int64_t rows, std::int64_t cols) {
    NIBBLE_ASSIGN_OR_RETURN(const ConstMatrix matrix, MappedMatrix(name, rows, cols));
    model_.resident_bytes_ += static_cast<std::uint64_t>(rows * cols * kernels::SizeOf(matrix.dtype));
    return matrix;
  }

  // The embedding or a float head. The adapter's copy is rounded to the type of the base's tensor.
  absl::StatusOr<ConstMatrix> VocabularyMatrix(const std::string& name) {
    const std::int64_t rows = config_.vocab_size;
    const std::int64_t cols = config_.hidden_size;
    const std::string copy = artifact_.InUse(name);
    if (copy == name) return FloatMatrix(name, rows, cols);
    NIBBLE_ASSIGN_OR_RETURN(const ConstMatrix replaced, MappedMatrix(name, rows, cols));
    if (replaced.dtype == DType::kF32) return FloatMatrix(copy, rows, cols);
    NIBBLE_ASSIGN_OR_RETURN(const ConstMatrix values, MappedMatrix(copy, rows, cols));
    NIBBLE_ASSIGN_OR_RETURN(auto* rounded, Allocate<kernels::BF16>(rows * cols));
    stream_.ParallelFor(rows, kRoundedRows, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        std::transform(values.Row<float>(r), values.Row<float>(r) + cols, rounded + r * cols,
                       [](float value) { return kernels::ToBF16(value); });
      }
    });
    ForgetPages({static_cast<const std::byte*>(values.data), static_cast<std::size_t>(rows * cols * 4)});
    return kernels::MakeConstMatrix(rounded, DType::kBF16, rows, cols);
  }

  absl::StatusOr<kernels::PackedInt8Weight> Int8(const std::string& name, std::int64_t rows, std::int64_t cols) {
    NIBBLE_ASSIGN_OR_RETURN(const TensorView codes, Tensor(name, {rows, cols}, DType::kI8));
    NIBBLE_ASSIGN_OR_RETURN(const TensorView scale, Tensor(name + kInt8ScaleSuffix, {rows}, DType::kF32));
    NIBBLE_ASSIGN_OR_RETURN(auto* tiles, Allocate<std::int8_t>(kernels::PackedInt8Bytes(rows, cols)));
    NIBBLE_ASSIGN_OR_RETURN(auto* row_sum, Allocate<std::int32_t>(kernels::RoundUp(rows, kernels::kInt8TileRows)));
    NIBBLE_ASSIGN_OR_RETURN(auto* scales, Allocate<float>(kernels::RoundUp(rows, kernels::kInt8TileRows)));
    std::fill_n(scales, kernels::RoundUp(rows, kernels::kInt8TileRows), 0.0f);
    std::memcpy(scales, scale.bytes.data(), scale.bytes.size());
    kernels::PackInt8Weight(reinterpret_cast<const std::int8_t*>(codes.bytes.data()), rows, cols, tiles, row_sum);
    ForgetPages(codes.bytes);
    return kernels::PackedInt8Weight{tiles, scales, row_sum, rows, cols, kernels::Int8PaddedK(cols)};
  }

  absl::StatusOr<kernels::Nf4Weight> Nf4(const std::string& name, std::int64_t rows, std::int64_t cols) {
    const std::int64_t block = info_.nf4.block;
    NIBBLE_ASSIGN_OR_RETURN(const TensorView codes, Tensor(name, {rows, kernels::Nf4RowBytes(cols)}, DType::kU8));
    NIBBLE_ASSIGN_OR_RETURN(auto* scales, Allocate<float>(rows * kernels::Nf4RowBlocks(cols, block)));
    NIBBLE_RETURN_IF_ERROR(ReadNf4Scales(artifact_, name, rows, cols, stream_, scales));
    model_.resident_bytes_ += codes.bytes.size();
    return kernels::Nf4Weight{reinterpret_cast<const std::uint8_t*>(codes.bytes.data()), scales, rows, cols, block};
  }

  absl::StatusOr<kernels::PackedDenseWeight> Panels(const ConstMatrix& matrix) {
    const std::int64_t elements = kernels::PackedDenseElements(matrix.rows, matrix.cols);
    NIBBLE_ASSIGN_OR_RETURN(auto* panels, Allocate<std::byte>(elements * kernels::SizeOf(matrix.dtype)));
    kernels::PackDenseWeight(matrix.data, matrix.dtype, matrix.rows, matrix.cols, panels);
    // If the embedding is tied, its lookups map again the pages that they need. A rounded copy has no file to map.
    const bool mapped = std::none_of(model_.memory_.begin(), model_.memory_.end(),
                                     [&](const auto& buffer) { return buffer.data() == matrix.data; });
    const std::int64_t bytes = matrix.rows * matrix.cols * kernels::SizeOf(matrix.dtype);
    if (mapped) ForgetPages({static_cast<const std::byte*>(matrix.data), static_cast<std::size_t>(bytes)});
    return kernels::PackedDenseWeight{panels, matrix.dtype, matrix.rows, matrix.cols};
  }

  absl::StatusOr<kernels::PackedTernaryWeight> Ternary(const std::string& name, std::int64_t rows, std::int64_t cols) {
    NIBBLE_ASSIGN_OR_RETURN(const TensorView codes, Tensor(name, {rows, kernels::TernaryRowBytes(cols)}, DType::kU8));
    NIBBLE_ASSIGN_OR_RETURN(const TensorView scale, Tensor(name + kTernaryScaleSuffix, {1}, DType::kF32));
    NIBBLE_ASSIGN_OR_RETURN(auto* tiles, Allocate<std::uint8_t>(kernels::PackedTernaryBytes(rows, cols)));
    NIBBLE_ASSIGN_OR_RETURN(auto* scales, Allocate<float>(kernels::RoundUp(rows, kernels::kTernaryTileRows)));
    std::fill_n(scales, kernels::RoundUp(rows, kernels::kTernaryTileRows),
                *reinterpret_cast<const float*>(scale.bytes.data()));
    if (!kernels::TernaryRowsToTiles(reinterpret_cast<const std::uint8_t*>(codes.bytes.data()), rows, cols, tiles)) {
      return absl::DataLossError(base::StrCat(name, ": holds a code other than -1, 0 and 1"));
    }
    ForgetPages(codes.bytes);
    return kernels::PackedTernaryWeight{tiles, scales, rows, cols, kernels::TernaryPaddedK(cols)};
  }

  // The magnitudes divided by the norms of the rows.
  absl::StatusOr<const float*> DoraFactors(const std::string& magnitudes, std::int64_t rows, MergedRows& merged) {
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<float> values, artifact_.FloatTensor(magnitudes));
    NIBBLE_ASSIGN_OR_RETURN(float* factors, Allocate<float>(rows));
    NIBBLE_RETURN_IF_ERROR(merged.Norms(factors, stream_));
    for (std::int64_t i = 0; i < rows; ++i) factors[i] = DoraFactor(values[static_cast<std::size_t>(i)], factors[i]);
    return factors;
  }

  static FrozenWeight Frozen(const LinearWeight& weight) {
    switch (weight.kind) {
      case LinearWeight::Kind::kNf4: return weight.nf4;
      case LinearWeight::Kind::kInt8:
      case LinearWeight::Kind::kInt8Weight: return weight.int8;
      default: return weight.library;
    }
  }

  absl::Status Lora(const std::string& path, std::int64_t rows, std::int64_t cols, LinearWeight* weight) {
    const std::optional<LinearAdapter> adapter = artifact_.adapter()->On(path);
    if (!adapter.has_value()) return absl::OkStatus();
    const std::string prefix = LoraModule(path);
    LoraWeight lora;
    NIBBLE_ASSIGN_OR_RETURN(const ConstMatrix a, FloatMatrix(prefix + kLoraASuffix, adapter->rank, cols));
    NIBBLE_ASSIGN_OR_RETURN(const ConstMatrix b, FloatMatrix(prefix + kLoraBSuffix, rows, adapter->rank));
    NIBBLE_ASSIGN_OR_RETURN(lora.a, Panels(a));
    NIBBLE_ASSIGN_OR_RETURN(lora.b, Panels(b));
    lora.scaling = static_cast<float>(adapter->scaling);
    if (artifact_.adapter()->dora) {
      MergedRows merged(Frozen(*weight));
      merged.SetAdapter(a, b, lora.scaling);
      NIBBLE_ASSIGN_OR_RETURN(lora.dora_factor, DoraFactors(prefix + kMagnitudeSuffix, rows, merged));
    }
    weight->lora = lora;
    return absl::OkStatus();
  }

  absl::StatusOr<LinearWeight> Linear(LinearKind kind, const std::string& path, std::int64_t rows, std::int64_t cols) {
    const std::string name = path + ".weight";
    LinearWeight weight;
    switch (info_.weight_format()) {
      case Format::kInt8: {
        weight.kind = Int8Kind();
        NIBBLE_ASSIGN_OR_RETURN(weight.int8, Int8(name, rows, cols));
        break;
      }
      case Format::kTernary: {
        if (info_.bitnet->StaysFloat(kind)) {
          weight.kind = LinearWeight::Kind::kDense;
          NIBBLE_ASSIGN_OR_RETURN(const ConstMatrix matrix, MappedMatrix(name, rows, cols));
          NIBBLE_ASSIGN_OR_RETURN(weight.dense, Panels(matrix));
          break;
        }
        weight.kind = LinearWeight::Kind::kTernary;
        NIBBLE_ASSIGN_OR_RETURN(weight.ternary, Ternary(name, rows, cols));
        break;
      }
      case Format::kNf4: {
        weight.kind = LinearWeight::Kind::kNf4;
        NIBBLE_ASSIGN_OR_RETURN(weight.nf4, Nf4(name, rows, cols));
        break;
      }
      default: {
        weight.kind = LinearWeight::Kind::kLibrary;
        NIBBLE_ASSIGN_OR_RETURN(weight.library, FloatMatrix(name, rows, cols));
      }
    }
    if (info_.format == Format::kLora) NIBBLE_RETURN_IF_ERROR(Lora(path, rows, cols, &weight));
    if (artifact_.tensors().contains(path + ".bias")) {
      NIBBLE_ASSIGN_OR_RETURN(weight.bias, FloatVector(path + ".bias", rows));
    }
    return weight;
  }

  LinearWeight::Kind Int8Kind() const {
    return info_.weight_only ? LinearWeight::Kind::kInt8Weight : LinearWeight::Kind::kInt8;
  }
  bool Int8Head() const { return info_.weight_format() == Format::kInt8 && info_.int8_head; }
  bool TiedInt8() const { return Int8Head() && config_.tied_embeddings; }

  absl::Status Embedding() {
    if (TiedInt8()) {
      NIBBLE_ASSIGN_OR_RETURN(model_.weights_.embedding_int8,
                              Int8(kEmbeddingName, config_.vocab_size, config_.hidden_size));
      return absl::OkStatus();
    }
    NIBBLE_ASSIGN_OR_RETURN(model_.weights_.embedding, VocabularyMatrix(kEmbeddingName));
    return absl::OkStatus();
  }

  absl::Status Head() {
    LinearWeight& head = model_.weights_.head;
    const std::int64_t rows = config_.vocab_size;
    const std::int64_t cols = config_.hidden_size;
    if (TiedInt8()) {
      head.kind = Int8Kind();
      head.int8 = model_.weights_.embedding_int8;
      return absl::OkStatus();
    }
    if (Int8Head()) {
      head.kind = Int8Kind();
      NIBBLE_ASSIGN_OR_RETURN(head.int8, Int8(kHeadName, rows, cols));
      return absl::OkStatus();
    }
    ConstMatrix matrix = model_.weights_.embedding;
    if (!config_.tied_embeddings) {
      NIBBLE_ASSIGN_OR_RETURN(matrix, VocabularyMatrix(kHeadName));
    }
    if (info_.determinism() == Determinism::kBitwise) {
      head.kind = LinearWeight::Kind::kDense;
      NIBBLE_ASSIGN_OR_RETURN(head.dense, Panels(matrix));
    } else {
      head.kind = LinearWeight::Kind::kLibrary;
      head.library = matrix;
    }
    return absl::OkStatus();
  }

  absl::Status RopeTable(const LoadedModel::Options& options) {
    const std::int64_t positions = std::min(config_.context_limit(), options.max_positions);
    const std::int64_t half = config_.head_dim / 2;
    const std::vector<float> frequencies = RopeInverseFrequencies(config_);
    NIBBLE_ASSIGN_OR_RETURN(float* cos, Allocate<float>(positions * half));
    NIBBLE_ASSIGN_OR_RETURN(float* sin, Allocate<float>(positions * half));
    kernels::FillRopeTable(frequencies.data(), half, 0, positions, cos, sin);
    model_.weights_.rope_cos = cos;
    model_.weights_.rope_sin = sin;
    model_.weights_.rope_positions = positions;
    return absl::OkStatus();
  }

  LoadedModel& model_;
  const Artifact& artifact_;
  const ModelConfig& config_;
  const ArtifactInfo& info_;
  const kernels::Stream& stream_;
};

absl::StatusOr<std::shared_ptr<const LoadedModel>> LoadedModel::Load(const std::string& directory,
                                                                     const Options& options,
                                                                     const kernels::Stream& stream) {
  if (stream.device != kernels::DeviceKind::kCpu) {
    return absl::UnimplementedError("models are served on the CPU only in this build");
  }
  std::shared_ptr<LoadedModel> model(new LoadedModel);
  NIBBLE_ASSIGN_OR_RETURN(model->artifact_, Artifact::Open(directory));
  NIBBLE_RETURN_IF_ERROR(LoadedModelBuilder(*model, stream).Build(options));
  return model;
}

}  // namespace nibble::model
