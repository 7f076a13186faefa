// Model -> serving artifact: pure transformations, shared by the trainer and `models convert`. The same input and options
// give the same bytes, whatever the instruction set and the number of threads.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "kernels/formats/int8.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/model/artifact.h"

namespace nibble::convert {

struct ConvertOptions {
  model::Format to = model::Format::kInt8;               // kInt8, kTernary or kNf4
  int act_outliers = kernels::kDefaultOutliers;          // int8: 0 to 16 outliers that an activation row keeps
  // int8: head and tied embedding too, or they stay in bf16. Unset: int8, but of what a job has trained with a float head as
  // it was trained.
  std::optional<bool> int8_head = std::nullopt;
  // What serving rounds K and V to. Unset: bf16; to ternary, what the masters of a BitNet model say.
  std::optional<kernels::DType> kv_dtype = std::nullopt;
  bool measure_errors = true;      // for ConvertReport::layers: reads every weight once more
  base::Cancelled cancelled = {};  // asked before every tensor and every block of its rows
};

// How far a quantised weight is from what it was made of.
struct LayerError {
  std::string name;
  double rms_error = 0;       // root of the mean of (W' - W)^2
  double relative_error = 0;  // ||W' - W|| / ||W||, Frobenius
  double max_abs_error = 0;
};

struct ConvertReport {
  model::ArtifactInfo info;             // of what was made
  std::vector<LayerError> layers;       // every quantised weight, in the order of the model, where they are measured
  std::uint64_t source_weight_bytes = 0;
  std::uint64_t weight_bytes = 0;
};
base::Json ToJson(const ConvertReport& report);

// Whether a model can become one of this format at all. Errors: as ConvertModel's of a format pair.
absl::Status CheckConversion(const model::ArtifactInfo& source, model::Format to);

// Of what ConvertModel makes: format, head, KV cache and BitNet options. No digests and no provenance yet.
model::ArtifactInfo InfoOfConversion(const model::ArtifactInfo& source, const ConvertOptions& options);

// int8 from f32, bf16, nf4 and lora; nf4 and ternary from f32 and bf16. A lora model is merged onto its DEQUANTISED NF4 base,
// W + (B A) * scaling in f32, before it becomes int8 (peft#2105). One tensor is in memory at a time.
// Ternary codes are made exactly once, of master weights: a tensor that is ternary already is refused, and so is a ternary
// model. Embedding and head become the source's BitNetInfo::head_dtype (bf16 where it has none).
// On any error nothing is left at `target`, which must not be there or be empty.
// Errors: InvalidArgument (options; a format pair that is not a conversion; more input features than the format's product holds;
// weights to be quantised that are not finite), FailedPrecondition (ALREADY_TERNARY), AlreadyExists, Cancelled, those of the file system.
absl::StatusOr<ConvertReport> ConvertModel(base::FileSystem& files, const model::Artifact& source, const std::string& target,
                                           const ConvertOptions& options, const kernels::Stream& stream);

// What a bitnet_qat job has trained -> f32 artifact of master weights, which ConvertModel makes ternary. values: one f32 span for
// each of RequiredTensors(config), in its order; tokenizer files are those beside `companions`. made_of: ArtifactInfo::source.
// `cancelled` is asked before every tensor, here and below.
absl::StatusOr<model::ArtifactInfo> MakeMasterModel(base::FileSystem& files, const model::ModelConfig& config,
                                                    const model::BitNetInfo& bitnet, kernels::DType kv_dtype,
                                                    std::span<const std::span<const float>> values,
                                                    const std::string& companions, const base::Json& provenance,
                                                    const std::string& target, const char* made_of = "job",
                                                    const base::Cancelled& cancelled = {});

// nf4 base + adapter -> lora artifact, whose tensors are the base's own file where it can be shared (ArtifactWriter::CreateOn).
// values: one f32 vector for each of AdapterTensors, in its order.
absl::StatusOr<model::ArtifactInfo> MakeLoraModel(base::FileSystem& files, const model::Artifact& nf4_base,
                                                  const model::AdapterConfig& adapter,
                                                  const std::vector<std::vector<float>>& values,
                                                  const base::Json& provenance, const std::string& target,
                                                  const char* made_of = "job", const base::Cancelled& cancelled = {});

}  // namespace nibble::convert
