// Bounds the memory that encoding takes, where many rows are encoded by several threads for several calls.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/base/memory_budget.h"
#include "server/base/mutex.h"

namespace nibble::data {

// Larger rows are encoded one at a time.
inline constexpr std::size_t kLargeRowBytes = 256 << 10;

// One large row at a time, inside the memory that models and trainers share. Thread-safe; outlives its turns.
class LargeRows {
 public:
  // A row that is being encoded: it keeps the others waiting, and its memory taken. One thread.
  class Turn {
   public:
    Turn(Turn&& other) noexcept : rows_(std::exchange(other.rows_, nullptr)), taken_(std::move(other.taken_)), bytes_(other.bytes_) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn();
    // The row takes `bytes` in all; it keeps what it has if they are less. Errors: ResourceExhausted (OUT_OF_DEVICE_MEMORY; metadata
    // need, have: bytes) at once.
    absl::Status Need(std::int64_t bytes);

   private:
    friend class LargeRows;
    explicit Turn(LargeRows* rows) : rows_(rows) {}
    LargeRows* rows_;
    std::vector<std::shared_ptr<const void>> taken_;
    std::int64_t bytes_ = 0;
  };

  // Without a budget rows take what they need.
  explicit LargeRows(std::shared_ptr<base::MemoryBudget> memory = nullptr) : memory_(std::move(memory)) {}

  // Waits for the row before, asking `cancelled` some times a second; Cancelled.
  absl::StatusOr<Turn> Await(const base::Cancelled& cancelled);

 private:
  const std::shared_ptr<base::MemoryBudget> memory_;
  base::Mutex mutex_;
  base::Condition changed_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
};

// Called before a row takes much memory: it is large, or a part of it cannot be cut into pieces (text/piece_encoder.h). The row is encoded
// while the turn is held. An error ends its encoding.
using AwaitTurn = std::function<absl::StatusOr<LargeRows::Turn>()>;

}  // namespace nibble::data
