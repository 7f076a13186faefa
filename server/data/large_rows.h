// Bounds the memory for encoding when several threads encode rows for several calls.
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

// Allows one large row at a time, within the memory that models and trainers share. Thread-safe; must outlive its
// turns.
class LargeRows {
 public:
  // Held while a row is encoded. Makes other rows wait, and holds the row's memory. One thread.
  class Turn {
   public:
    Turn(Turn&& other) noexcept
        : rows_(std::exchange(other.rows_, nullptr)), taken_(std::move(other.taken_)), bytes_(other.bytes_) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn();
    // Raises the memory of the row to `bytes`; never lowers it. Does not wait. Errors: ResourceExhausted
    // (OUT_OF_DEVICE_MEMORY; metadata need, have: bytes).
    absl::Status Need(std::int64_t bytes);

   private:
    friend class LargeRows;
    explicit Turn(LargeRows* rows) : rows_(rows) {}
    LargeRows* rows_;
    std::vector<std::shared_ptr<const void>> taken_;
    std::int64_t bytes_ = 0;
  };

  // Without a budget, the memory of rows is not limited.
  explicit LargeRows(std::shared_ptr<base::MemoryBudget> memory = nullptr) : memory_(std::move(memory)) {}

  // Waits until no other row has the turn. Calls `cancelled` several times a second. Errors: Cancelled.
  absl::StatusOr<Turn> Await(const base::Cancelled& cancelled);

 private:
  const std::shared_ptr<base::MemoryBudget> memory_;
  base::Mutex mutex_;
  base::Condition changed_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
};

// Called before a row takes much memory, because it is large or a part of it cannot be cut into pieces
// (text/piece_encoder.h). The row holds the turn while it is encoded. An error ends the encoding.
using AwaitTurn = std::function<absl::StatusOr<LargeRows::Turn>()>;

}  // namespace nibble::data
