// Quantized bases that qlora attempts share. Each is made once and found by the digest of its inputs. Trainers of
// several jobs use the directory at the same time; the server removes leftovers when it starts (state_directory.h).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/files.h"
#include "server/store/published_directory.h"

namespace nibble::store {

// The key of a model's nf4 form. manifest_digest: of the model; it also covers the tokenizer, of which the form has a
// copy. options: model::KeyOf the options of the form. Change the number 1 in the key when conversion makes other bytes
// from the same model.
inline std::string Nf4BaseKey(const std::string& manifest_digest, const std::string& options) {
  return manifest_digest + "-nf4-1" + options;
}

// Thread-compatible; several processes may share a directory. Each entry is a published directory, locked with flock
// while in use.
class BaseCache {
 public:
  // Entries in use may exceed both limits.
  struct Limits {
    std::uint64_t max_bytes = 0;       // total of all entries
    std::uint64_t min_free_bytes = 0;  // of the disk; entries are removed until this much is free
  };
  BaseCache(base::FileSystem& files, std::string directory, Limits limits);

  // Handle of an entry in use: the entry is not removed while the handle exists.
  class Entry {
   public:
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    const std::string& path() const { return path_; }

   private:
    friend class BaseCache;
    Entry(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
    const std::string path_;
    const int fd_;
  };

  // Target of the PendingDirectory that is passed to Add.
  std::string Path(const std::string& key) const;
  // Null if there is no entry. Reads and hashes every byte; removes a damaged entry. Errors: Cancelled, file system
  // errors.
  absl::StatusOr<std::unique_ptr<Entry>> Find(const std::string& key, const Cancelled& cancelled = {});
  // Publishes `made`, whose target is Path(key), and trims the cache; or finds the entry that another process published
  // meanwhile.
  absl::StatusOr<std::unique_ptr<Entry>> Add(const std::string& key, PendingDirectory made,
                                             const Cancelled& cancelled = {});
  // Removes damaged entries, then the least recently used ones, until the limits hold. Keeps entries that a process
  // uses.
  absl::Status Trim();
  // Removes only as many of the least recently used entries as are needed to have `bytes` free beyond
  // Limits::min_free_bytes. Keeps entries that a process uses, and entries whose files a model shares, because removing
  // those frees nothing. Removes nothing if the other entries do not suffice. Returns whether there is enough room.
  absl::StatusOr<bool> MakeRoom(std::uint64_t bytes);
  // Bytes that removing all entries would free. Includes entries in use, because their users will end.
  std::uint64_t ReclaimableBytes() const;

 private:
  struct Held {
    std::string path;
    absl::Time used;  // InfinitePast if damaged
    std::uint64_t bytes = 0;
  };
  absl::StatusOr<std::vector<Held>> LeastRecentlyUsedFirst() const;

  base::FileSystem& files_;
  const std::string directory_;
  const Limits limits_;
};

}  // namespace nibble::store
