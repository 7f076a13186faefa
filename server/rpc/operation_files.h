// The files of an operation that writes a whole model: it stops at the next write when it is cancelled (a shutdown cancels too;
// what reads a whole model asks by itself, store::Cancelled), and when the disk comes below its watermark, which others' work needs.
#pragma once
#include <string>
#include <string_view>

#include "server/base/free_space.h"
#include "server/base/hooked_files.h"
#include "server/rpc/operations.h"

namespace nibble::rpc {

// Tensors are written one by one, so a write is never far. One thread.
class OperationWrites {
 public:
  // What is free is asked at the first write and then every so many bytes.
  static constexpr std::uint64_t kAskEvery = std::uint64_t{64} << 20;

  OperationWrites(base::FileSystem& files, const OperationScope& scope, std::uint64_t min_free_bytes)
      : files_(files), scope_(scope), min_free_bytes_(min_free_bytes) {}

  template <typename Work>
  auto Around(const char*, const std::string&, Work work) -> decltype(work()) {
    return work();
  }
  // Cancelled, ResourceExhausted (DISK_FULL), or as `write`.
  template <typename Write>
  absl::Status Append(const std::string& path, std::string_view bytes, Write write) {
    if (scope_.cancelled()) return absl::CancelledError("cancelled");
    unasked_ += bytes.size();
    if (unasked_ >= kAskEvery) {
      unasked_ = 0;
      if (absl::Status room = base::CheckSpace(files_, path, min_free_bytes_); !room.ok()) return room;
    }
    return write(bytes);
  }

 private:
  base::FileSystem& files_;
  const OperationScope& scope_;
  const std::uint64_t min_free_bytes_;
  std::uint64_t unasked_ = kAskEvery;
};

class OperationFiles : public base::HookedFiles<OperationWrites> {
 public:
  // All must outlive this.
  OperationFiles(base::FileSystem& files, const OperationScope& scope, std::uint64_t min_free_bytes)
      : HookedFiles(files, files, scope, min_free_bytes) {}
};

}  // namespace nibble::rpc
