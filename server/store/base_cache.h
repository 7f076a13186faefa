// Quantised bases that qlora attempts share: made once of a model, found again by the digest of what they were made of. Trainers of
// several jobs use one directory at a time; the server removes leftovers at its start (state_directory.h).
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

// Thread-compatible; safe among processes. Each entry is a published directory, locked with flock while it is used.
class BaseCache {
 public:
  // What is in use may exceed both.
  struct Limits {
    std::uint64_t max_bytes = 0;       // of all entries together
    std::uint64_t min_free_bytes = 0;  // of the disk: with less free no entry is kept
  };
  BaseCache(base::FileSystem& files, std::string directory, Limits limits);

  // In use, so it is not removed, while this lives.
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

  // Where PendingDirectory has to publish the entry.
  std::string Path(const std::string& key) const;
  // Null where there is none. Reads and hashes every byte; a damaged entry is removed. Errors: Cancelled, those of the file system.
  absl::StatusOr<std::unique_ptr<Entry>> Find(const std::string& key, const Cancelled& cancelled = {});
  // Publishes `made`, whose target is Path(key), or finds what another process has published meanwhile. Makes room for it.
  absl::StatusOr<std::unique_ptr<Entry>> Add(const std::string& key, PendingDirectory made, const Cancelled& cancelled = {});
  // Removes the least recently used that no process uses, until the limits are kept.
  absl::Status Trim();
  // Makes `bytes` more than Limits::min_free_bytes free: removes no more of the least recently used entries than that takes. Entries
  // that a process uses stay, and so do those whose files a model shares, because their removal frees nothing. Removes nothing where
  // the rest does not suffice. False: there is not that much room.
  absl::StatusOr<bool> MakeRoom(std::uint64_t bytes);
  // Bytes that the removal of all entries would free. Entries in use count, because their users end.
  std::uint64_t ReclaimableBytes() const;

 private:
  struct Held {
    std::string path;
    absl::Time used;  // InfinitePast: damaged, so of no use
    std::uint64_t bytes = 0;
  };
  absl::StatusOr<std::vector<Held>> LeastRecentlyUsedFirst() const;

  base::FileSystem& files_;
  const std::string directory_;
  const Limits limits_;
};

}  // namespace nibble::store
