// File system for an operation that writes a whole model. The next write fails when the operation is cancelled, also by
// a shutdown. A write within kCheckEveryBytes fails when free disk space falls below the watermark, because other work
// needs that space. Code that reads a whole model polls store::Cancelled instead. Takes the digests of the files as
// they are written.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "server/base/free_space.h"
#include "server/base/hooked_files.h"
#include "server/base/written_digests.h"
#include "server/registry/operation_scope.h"

namespace nibble::registry {

// The hook of OperationFiles. Checks for a cancel at each write, which is often enough: tensors are written one by one.
// One thread.
class OperationWrites {
 public:
  // Free space is checked at the first write and then after this many bytes.
  static constexpr std::uint64_t kCheckEveryBytes = std::uint64_t{64} << 20;

  OperationWrites(base::FileSystem& files, const OperationScope& scope, std::uint64_t min_free_bytes)
      : files_(files), scope_(scope), min_free_bytes_(min_free_bytes) {}

  template <typename Work>
  auto Around(const char* operation, const std::string& path, Work work) -> decltype(work()) {
    auto result = work();
    if (std::string_view(operation) == "open") digests_.Opened(path);
    if (std::string_view(operation) == "close") digests_.Closed(path);
    return result;
  }
  // Errors: Cancelled, ResourceExhausted (DISK_FULL), those of `write`.
  template <typename Write>
  absl::Status Append(const std::string& path, std::string_view bytes, Write write) {
    if (scope_.cancelled()) return absl::CancelledError("cancelled");
    unchecked_bytes_ += bytes.size();
    if (unchecked_bytes_ >= kCheckEveryBytes) {
      unchecked_bytes_ = 0;
      if (absl::Status room = base::CheckSpace(files_, path, min_free_bytes_); !room.ok()) return room;
    }
    digests_.Appended(path, bytes);
    return write(bytes);
  }
  const base::WrittenDigests& digests() const { return digests_; }

 private:
  base::FileSystem& files_;
  const OperationScope& scope_;
  const std::uint64_t min_free_bytes_;
  std::uint64_t unchecked_bytes_ = kCheckEveryBytes;
  base::WrittenDigests digests_;
};

class OperationFiles : public base::HookedFiles<OperationWrites> {
 public:
  // `files` and `scope` must outlive this object.
  OperationFiles(base::FileSystem& files, const OperationScope& scope, std::uint64_t min_free_bytes)
      : HookedFiles(files, files, scope, min_free_bytes) {}
  // Digests of the files that were written through this object. Pass them to the Commit of the directory, which then
  // reads only the other files.
  const base::WrittenDigests& digests() const { return hook().digests(); }
};

}  // namespace nibble::registry
