// Verification of stored models: replays their records.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/registry/model_work.h"
#include "server/registry/operation_scope.h"
#include "server/store/model_store.h"

namespace nibble::registry {

// The replay of a model's record.
struct VerifyReport {
  struct Difference {
    std::int64_t row = 0;  // of the record, counted through all its sequences
    std::int32_t token_id = 0;
    std::string recorded_digest;
    std::string computed_digest;
  };
  bool equal = false;
  std::int64_t rows = 0;
  std::int64_t differing_rows = 0;
  std::optional<Difference> first_difference;
  std::string recorded_by;
  std::string digest;  // of the weights
};

// Replays the records of models. Thread-safe; the arguments are borrowed.
class ModelVerifier {
 public:
  // `serve_stream`: a model is replayed as it is served.
  ModelVerifier(const ModelWork& work, const kernels::Stream& serve_stream)
      : work_(work), serve_stream_(serve_stream) {}

  // Waits for other work with whole models (WorkAdmission). Errors: NotFound (MODEL), FailedPrecondition (NO_RECORD),
  // DataLoss, Cancelled, ResourceExhausted (OUT_OF_DEVICE_MEMORY), those of a load.
  absl::StatusOr<VerifyReport> Verify(const std::string& name, OperationScope& scope);

 private:
  // Compares the model's record with its logits now, and its tensors with their digests.
  absl::StatusOr<VerifyReport> Replay(const store::StoredModel& stored, OperationScope& scope);

  const ModelWork& work_;
  const kernels::Stream serve_stream_;
};

}  // namespace nibble::registry
