#pragma once
#include <string_view>
#include <utility>
#include <vector>

#include "server/base/log.h"
#include "server/base/mutex.h"

namespace nibble::jobs {

// The rows of one program for the training methods, by Row::name(). Rows are only added, and live until the process
// ends. Thread-safe.
template <typename Row>
class MethodTable {
 public:
  explicit MethodTable(std::vector<const Row*> rows) : rows_(std::move(rows)) {}

  std::vector<const Row*> All() const {
    base::MutexLock lock(mutex_);
    return rows_;
  }
  // Returns nullptr for an unknown name.
  const Row* Find(std::string_view name) const {
    base::MutexLock lock(mutex_);
    return FindRow(name);
  }
  // The name must be new.
  void Add(const Row& row) {
    base::MutexLock lock(mutex_);
    CHECK(FindRow(row.name()) == nullptr);
    rows_.push_back(&row);
  }

 private:
  const Row* FindRow(std::string_view name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const Row* row : rows_) {
      if (name == row->name()) return row;
    }
    return nullptr;
  }

  mutable base::Mutex mutex_;
  std::vector<const Row*> rows_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::jobs
