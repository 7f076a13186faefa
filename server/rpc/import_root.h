#pragma once
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace nibble::rpc {

// A file or directory below nibbled's --import_root, held open; links that lead out of the root are never followed.
class BeneathPath {
 public:
  // PermissionDenied (IMPORT_ROOT) without a root; InvalidArgument (IMPORT_ROOT) when the path, or an entry of the directory
  // that it is, leads out of it or is neither a directory nor a file with one name; NotFound.
  static absl::StatusOr<std::unique_ptr<BeneathPath>> Open(const std::string& root, const std::string& path);
  ~BeneathPath();
  BeneathPath(const BeneathPath&) = delete;
  BeneathPath& operator=(const BeneathPath&) = delete;

  // Good as long as this object lives.
  std::string path() const;

 private:
  static absl::StatusOr<std::unique_ptr<BeneathPath>> Open(int root, const std::string& path);
  explicit BeneathPath(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace nibble::rpc
