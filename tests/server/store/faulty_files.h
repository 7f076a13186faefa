#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "server/base/hooked_files.h"

namespace nibble::store {

// Base of hooks that do not change appends.
struct AppendsAsAsked {
  template <typename Write>
  absl::Status Append(const std::string&, std::string_view bytes, Write write) {
    return write(bytes);
  }
};

// Passes every call through.
struct NoHook : AppendsAsAsked {
  template <typename Work>
  auto Around(std::string_view, const std::string&, Work work) -> decltype(work()) {
    return work();
  }
};

// The real disk, except that the test sets the number of free bytes.
struct DiskWithRoom : base::HookedFiles<NoHook> {
  explicit DiskWithRoom(std::uint64_t free_in) : HookedFiles(base::RealFileSystem()), free(free_in) {}
  absl::StatusOr<std::uint64_t> FreeBytes(const std::string&) override { return free; }
  std::uint64_t free;
};

// Makes operations that change the disk fail from number `fail_at` (1-based) on, as after a power cut or on a full
// disk. One thread.
class FailFrom {
 public:
  explicit FailFrom(int fail_at) : fail_at_(fail_at) {}
  int operations() const { return operations_; }

  template <typename Work>
  auto Around(std::string_view operation, const std::string&, Work work) -> decltype(work()) {
    if (operation != "read" && Fails()) return Error();
    return work();
  }
  template <typename Write>
  absl::Status Append(const std::string&, std::string_view bytes, Write write) {
    if (!Fails()) return write(bytes);
    (void)write(bytes.substr(0, bytes.size() / 2));  // A short write.
    return Error();
  }

 private:
  static absl::Status Error() { return absl::InternalError("injected"); }
  bool Fails() { return ++operations_ >= fail_at_; }

  const int fail_at_;
  int operations_ = 0;
};

class FaultyFiles : public base::HookedFiles<FailFrom> {
 public:
  explicit FaultyFiles(int fail_at) : HookedFiles(base::RealFileSystem(), fail_at) {}
  int operations() const { return hook().operations(); }
};

}  // namespace nibble::store
