#include "server/plan/disk_plan.h"

#include <algorithm>

#include "server/model/layout.h"
#include "server/plan/memory_plan.h"

namespace nibble::plan {
namespace {

using model::Format;

constexpr std::int64_t kLogBytes = std::int64_t{8} << 20;  // journal, log and the files of an attempt
constexpr int kForms = 3;  // forms of the model, each with its tokenizer: base, trained and served
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;  // more than a disk has

}  // namespace

std::int64_t PlanDisk(const jobs::JobSpec& spec, const model::ModelConfig& config, std::int64_t base_bytes,
                      std::int64_t companion_bytes, std::int64_t max_steps) {
  const bool qlora = spec.method == jobs::kMethodQLora;
  const std::int64_t float_bytes = std::max<std::int64_t>(base_bytes, 2);
  const auto weights = [&](Format format, std::int64_t element) {
    model::ArtifactInfo info;
    info.format = format;
    return static_cast<double>(model::WeightFileBytes(config, info, element).value_or(0));
  };
  const auto trained = static_cast<double>(TrainedParameters(spec, config));
  // A checkpoint has values and two moments in f32. A new one is complete before the oldest is removed.
  const std::int64_t saved = spec.run.save_every > 0 ? max_steps / spec.run.save_every + 1 : 1;
  const auto checkpoints = static_cast<double>(std::min(std::max<std::int64_t>(1, spec.run.keep_last) + 1, saved));
  double bytes = static_cast<double>(kLogBytes + kForms * companion_bytes) + checkpoints * trained * 12;
  if (qlora) {
    // The base in nf4, if converted from another format; the adapter, whose model shares the base's file; the int8 form
    // that is evaluated.
    if (base_bytes != 0) bytes += weights(Format::kNf4, float_bytes);
    bytes += trained * 4 + weights(Format::kInt8, config.tied_embeddings ? 2 : float_bytes);
  } else {
    bytes += weights(Format::kF32, 4) + weights(Format::kTernary, 2);
  }
  return static_cast<std::int64_t>(std::min(bytes, static_cast<double>(kMostBytes)));
}

}  // namespace nibble::plan
