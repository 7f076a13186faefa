#include "server/base/written_digests.h"

#include <sys/stat.h>

#include <utility>

namespace nibble::base {

namespace {

std::int64_t ModifiedNs(const struct stat& found) {
  return static_cast<std::int64_t>(found.st_mtim.tv_sec) * 1'000'000'000 + found.st_mtim.tv_nsec;
}

}  // namespace

void WrittenDigests::Appended(const std::string& path, std::string_view bytes) {
  const auto file = open_.find(path);
  if (file == open_.end()) return;
  file->second.size += bytes.size();
  file->second.sha256.Update(bytes);
}

void WrittenDigests::Closed(const std::string& path) {
  const auto file = open_.find(path);
  if (file == open_.end()) return;
  struct stat found;
  // A file that was opened for append and had bytes before is larger than what was written to it now.
  if (lstat(path.c_str(), &found) == 0 && static_cast<std::uint64_t>(found.st_size) == file->second.size) {
    written_.insert_or_assign(
        path, Written{{file->second.size, file->second.sha256.HexDigest()}, found.st_ino, ModifiedNs(found)});
  }
  open_.erase(file);
}

std::optional<WrittenDigests::Digest> WrittenDigests::Find(const std::string& path) const {
  const auto file = written_.find(path);
  struct stat found;
  if (file == written_.end() || lstat(path.c_str(), &found) != 0) return std::nullopt;
  const Written& written = file->second;
  const bool same = found.st_ino == written.inode && ModifiedNs(found) == written.modified_ns &&
                    static_cast<std::uint64_t>(found.st_size) == written.digest.size;
  return same ? std::optional(written.digest) : std::nullopt;
}

}  // namespace nibble::base
