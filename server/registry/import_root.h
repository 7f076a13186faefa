#pragma once
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace nibble::registry {

// An open file or directory below nibbled's --import_root. Links that lead out of the root are never followed.
class BeneathPath {
 public:
  // Errors: PermissionDenied (IMPORT_ROOT): `root` is empty. InvalidArgument (FIELD_VIOLATION): `path` is empty or
  // holds a zero byte. InvalidArgument (IMPORT_ROOT): the path, or an entry of the directory at that path, leads out of
  // the root or is neither a directory nor a regular file with a single hard link. FailedPrecondition: the root cannot
  // be opened. NotFound: no such path.
  static absl::StatusOr<std::unique_ptr<BeneathPath>> Open(const std::string& root, const std::string& path);
  ~BeneathPath();
  BeneathPath(const BeneathPath&) = delete;
  BeneathPath& operator=(const BeneathPath&) = delete;

  // Valid while this object exists.
  std::string path() const;

 private:
  static absl::StatusOr<std::unique_ptr<BeneathPath>> Open(int root, const std::string& path);
  explicit BeneathPath(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace nibble::registry
