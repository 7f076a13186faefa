#include "server/kserve/statistics.h"

#include <algorithm>
#include <cstdint>

#include "server/kserve/infer_request.h"

namespace nibble::kserve {

namespace {

void Add(absl::Duration took, inference::StatisticDuration& total) {
  total.set_count(total.count() + 1);
  total.set_ns(total.ns() + static_cast<std::uint64_t>(std::max<std::int64_t>(0, absl::ToInt64Nanoseconds(took))));
}

// Whether the code shows that the request had reached a model.
bool ReachedAModel(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kInternal: return true;
    default: return false;
  }
}

}  // namespace

inference::ModelStatistics& Statistics::Entry(const std::string& model) {
  // An entry without an answer may be of a name that never existed: a cancel may come before the name is looked up.
  if (models_.size() >= kMaxModels && !models_.contains(model)) {
    std::erase_if(models_, [](const auto& entry) { return entry.second.inference_count() == 0; });
    if (models_.size() >= kMaxModels) models_.erase(models_.begin());
  }
  return models_[model];
}

void Statistics::Succeeded(const std::string& model, const Answered& answered) {
  base::MutexLock lock(mutex_);
  inference::ModelStatistics& entry = Entry(model);
  entry.set_last_inference(static_cast<std::uint64_t>(std::max<std::int64_t>(0, absl::ToUnixMillis(answered.began))));
  entry.set_inference_count(entry.inference_count() + 1);
  inference::InferStatistics& stats = *entry.mutable_inference_stats();
  Add(answered.took, *stats.mutable_success());
  Add(answered.queued, *stats.mutable_queue());
  Add(answered.computed, *stats.mutable_compute_infer());
}

void Statistics::Failed(const std::string& model, absl::StatusCode code, absl::Duration took) {
  if (!ReachedAModel(code)) return;
  base::MutexLock lock(mutex_);
  Add(took, *Entry(model).mutable_inference_stats()->mutable_fail());
}

inference::ModelStatistics Statistics::Of(const std::string& model) const {
  inference::ModelStatistics out;
  {
    base::MutexLock lock(mutex_);
    if (const auto found = models_.find(model); found != models_.end()) out = found->second;
  }
  out.set_name(model);
  out.set_version(kModelVersion);
  out.mutable_inference_stats();  // clients expect it
  return out;
}

}  // namespace nibble::kserve
