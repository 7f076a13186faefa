// Converts a model into a serving artifact. Shared by the trainer and `models convert`. The same input and options give
// the same bytes for every instruction set and number of threads.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "kernels/formats/int8.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/convert/adapter_init.h"
#include "server/model/artifact.h"

namespace nibble::convert {

struct ConvertOptions {
  model::Format to = model::Format::kInt8;  // kInt8, kTernary, kNf4 or kBF16; kF32 only with adapter_init
  // int8: maximum outliers per activation row, 0 to 16. Unset: as the source was trained (an adapter on an int8 base:
  // as that base), else kDefaultOutliers. A source that was trained in int8 keeps its own, and its head and KV cache.
  std::optional<int> act_outliers = std::nullopt;
  // int8: whether linears and an int8 head multiply float rows instead of codes; then act_outliers must be 0 or unset.
  // Unset: as an adapter's int8 base, else false. A source that was trained in int8 keeps its own.
  std::optional<bool> weight_only = std::nullopt;
  // int8: true makes head and tied embedding int8 too; false makes them bf16, and is refused for an adapter on a base
  // with an int8 head. Unset: as an adapter's int8 base; false for other adapters and for a model that a job trained,
  // all of which were trained with a float head; otherwise true.
  std::optional<bool> int8_head = std::nullopt;
  // Serving rounds K and V to this type. Unset: bf16; for ternary from BitNet masters, the masters' type; the source's
  // for an adapter on an int8 base and for kF32.
  std::optional<kernels::DType> kv_dtype = std::nullopt;
  model::Nf4Options nf4 = {};  // nf4
  // Makes the base of an adapter, and the values with which the adapter begins: for kNf4, and with kPissa also kBF16
  // and kF32.
  std::optional<AdapterInit> adapter_init = std::nullopt;
  bool measure_errors = true;      // fills ConvertReport::layers; for nf4 and with adapter_init, reads weights twice
  base::Cancelled cancelled = {};  // checked before every tensor and every block of its rows
};

// The difference between a quantized weight W' and its source W. With adapter_init, W' has the adapter merged.
struct LayerError {
  std::string name;
  double rms_error = 0;       // root of the mean of (W' - W)^2
  double relative_error = 0;  // ||W' - W|| / ||W||, Frobenius
  double max_abs_error = 0;
};

struct ConvertReport {
  model::ArtifactInfo info;  // of the result
  // Every weight that is quantized or gets an adapter, in the model's order; empty unless measure_errors.
  std::vector<LayerError> layers;
  std::uint64_t source_weight_bytes = 0;
  std::uint64_t weight_bytes = 0;
  std::vector<std::vector<float>> adapter;  // with adapter_init: one vector per tensor of AdapterTensors, in that order
};
base::Json ToJson(const ConvertReport& report);

// Checks that a model can be converted with these options. Errors: those of ConvertModel for options and a format pair.
absl::Status CheckConversion(const model::ArtifactInfo& source, const ConvertOptions& options);

// The info of ConvertModel's result: format, head, KV cache and BitNet options, without digests and provenance.
model::ArtifactInfo InfoOfConversion(const model::ArtifactInfo& source, const ConvertOptions& options);

// The key in ArtifactInfo::provenance of how an initial adapter and its base were made: {"method", "iterations"}.
inline constexpr char kAdapterInit[] = "adapter_init";

// Makes int8 from f32, bf16, nf4 and lora; nf4 and ternary from f32 and bf16; bf16 from f32, nf4 and lora. Copies an
// int8 model that a job trained, and shares its file if possible. With adapter_init, makes a base from f32 and bf16, of
// InitialAdapter::rest where the adapter has targets. A lora model is merged onto its base, W + (B A) * scaling in f32,
// before it becomes int8 or is rounded to bf16; an nf4 or int8 base is DEQUANTIZED first (peft#2105), and tensors
// without adapter keep their int8 codes. Copies of saved modules replace the base's tensors. One tensor is in memory at
// a time; also all scales, for nf4 without double quantization, and the values of an initial adapter. Ternary codes are
// made exactly once, from master weights: a tensor or model that is already ternary is refused. Embedding and head of a
// ternary model get the source's BitNetInfo::head_dtype (bf16 if it has none). `target` must not exist, or must be
// empty. On any error nothing is left there. Errors: InvalidArgument (options; an unsupported format pair; more input
// features than the format's product allows; matrices for int8, ternary or bf16, or targets of an initial adapter, that
// are not finite; those of CheckAdapterInit), FailedPrecondition (ALREADY_TERNARY), AlreadyExists, Cancelled, those of
// the file system.
absl::StatusOr<ConvertReport> ConvertModel(base::FileSystem& files, const model::Artifact& source,
                                           const std::string& target, const ConvertOptions& options,
                                           const kernels::Stream& stream);

// Properties of trained weights that their artifact records besides the architecture; see ArtifactInfo.
struct TrainedForm {
  std::optional<model::BitNetInfo> bitnet = std::nullopt;  // master weights of a bitnet_qat job
  kernels::DType kv_dtype = kernels::DType::kBF16;
  std::optional<int> trained_outliers = std::nullopt;
  bool weight_only = false;  // i8: see ArtifactInfo
  // f32 or bf16: of all tensors. i8: the linears are int8; the others are f32, and the head is written in bf16.
  kernels::DType dtype = kernels::DType::kF32;
};

// The type of trained values that a spec names "bf16" or "fp32".
inline kernels::DType FloatType(std::string_view name) {
  return name == "bf16" ? kernels::DType::kBF16 : kernels::DType::kF32;
}

// The elements of a trained tensor, or the codes of an int8 linear [N, K] and its scales [N].
struct TrainedTensor {
  std::span<const std::byte> values;
  std::span<const float> scales = {};
};

// Makes an f32, bf16 or int8 artifact of weights that a job trained. An int8 artifact is served with
// form.trained_outliers outliers per activation row (unset: 0). tensors: those of RequiredTensors(config), in that
// order. companions: the directory that tokenizer files are copied from. made_of becomes ArtifactInfo::source.
// `cancelled` is checked before every tensor, here and below.
absl::StatusOr<model::ArtifactInfo> MakeTrainedModel(base::FileSystem& files, const model::ModelConfig& config,
                                                     const TrainedForm& form, std::span<const TrainedTensor> tensors,
                                                     const std::string& companions, const base::Json& provenance,
                                                     const std::string& target, const char* made_of = "job",
                                                     const base::Cancelled& cancelled = {});

// Makes a lora artifact from a base in nf4, int8, bf16 or f32 and an adapter. It shares the base's tensor file if
// possible (ArtifactWriter::CreateOn). values: one f32 vector per tensor of AdapterTensors, in that order. Errors:
// FailedPrecondition (ADAPTER_BASE: a base in another format, BitNet masters, modules_to_save that do not fit the
// base), InvalidArgument (number of values), those of ArtifactWriter.
absl::StatusOr<model::ArtifactInfo> MakeLoraModel(base::FileSystem& files, const model::Artifact& base,
                                                  const model::AdapterConfig& adapter,
                                                  const std::vector<std::vector<float>>& values,
                                                  const base::Json& provenance, const std::string& target,
                                                  const char* made_of = "job", const base::Cancelled& cancelled = {});

}  // namespace nibble::convert
