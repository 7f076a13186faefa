// Counts and times of the requests of this service, by model.
#pragma once
#include <cstddef>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "inference/grpc_service.pb.h"
#include "server/base/mutex.h"

namespace nibble::kserve {

// A request that was answered.
struct Answered {
  absl::Time began;
  absl::Duration took;      // from arrival to the last response
  absl::Duration queued;    // before the first step
  absl::Duration computed;  // prefill and decode
};

// Thread-safe.
class Statistics {
 public:
  static constexpr std::size_t kMaxModels = 1000;

  void Succeeded(const std::string& model, const Answered& answered);
  // Ignores errors that may be due to the request itself, such as an unknown model: these never reached a model.
  void Failed(const std::string& model, absl::StatusCode code, absl::Duration took);
  inference::ModelStatistics Of(const std::string& model) const;

 private:
  inference::ModelStatistics& Entry(const std::string& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable base::Mutex mutex_;
  std::map<std::string, inference::ModelStatistics> models_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::kserve
