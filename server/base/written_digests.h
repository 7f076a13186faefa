#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "server/base/sha256.h"

namespace nibble::base {

// Digests of files, taken while the files are written, so that a file of gigabytes is not read again for its manifest.
// Thread-compatible.
class WrittenDigests {
 public:
  struct Digest {
    std::uint64_t size = 0;
    std::string sha256;
  };

  // Call these around the writes of a file: after it was opened, before each append, and after it was closed.
  void Opened(const std::string& path) { open_.insert_or_assign(path, Open{}); }
  void Appended(const std::string& path, std::string_view bytes);
  void Closed(const std::string& path);
  // The digest of a file that still is what was written between Opened and Closed: the same inode, size and time of the
  // last write. Nullopt for every other file.
  std::optional<Digest> Find(const std::string& path) const;

 private:
  struct Open {
    std::uint64_t size = 0;
    Sha256 sha256;
  };
  struct Written {
    Digest digest;
    ino_t inode = 0;
    std::int64_t modified_ns = 0;
  };
  std::map<std::string, Open> open_;
  std::map<std::string, Written> written_;
};

}  // namespace nibble::base
