// An artifact prepared for inference. Tensors that kernels read in their stored layout stay in the mapped file; the
// others are laid out once, in the model's own memory.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "kernels/weight_buffer.h"
#include "server/base/cancelled.h"
#include "server/model/artifact.h"
#include "server/model/decoder_weights.h"

namespace nibble::model {

// Immutable after Load. Thread-safe.
class LoadedModel {
 public:
  struct Options {
    std::int64_t max_positions = 8192;  // of the rope table; the model's own limit when that is lower
    base::Cancelled cancelled = {};     // checked before every layer
  };

  // Lays out weights for the stream's device. Nothing is quantized: values are moved (int8 and ternary tiles, dense
  // panels) or widened to f32 (norms, biases, NF4's block scales). An adapter's copy of the embedding or the head is
  // rounded to the type of the base's tensor, and DoRA's factors are computed. Errors: FailedPrecondition
  // (RAW_MASTERS), DataLoss, InvalidArgument (tensor named), Unimplemented (device, version of nibble.json),
  // ResourceExhausted, Cancelled.
  static absl::StatusOr<std::shared_ptr<const LoadedModel>> Load(const std::string& directory, const Options& options,
                                                                 const kernels::Stream& stream);

  const ModelConfig& config() const { return artifact_->config(); }
  const ArtifactInfo& info() const { return artifact_->info(); }
  const std::string& directory() const { return artifact_->directory(); }
  const DecoderWeights& weights() const { return weights_; }
  std::int64_t max_positions() const { return weights_.rope_positions; }
  std::uint64_t resident_bytes() const { return resident_bytes_; }  // own memory and mapped tensors

 private:
  friend class LoadedModelBuilder;
  LoadedModel() = default;

  std::unique_ptr<Artifact> artifact_;
  std::vector<kernels::WeightBuffer> memory_;
  DecoderWeights weights_;
  std::uint64_t resident_bytes_ = 0;
};

}  // namespace nibble::model
