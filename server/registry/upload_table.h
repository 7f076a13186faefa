// Table of the uploads that are in progress, interrupted or not yet used: their owners, sizes and expiry.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/auth/request_owner.h"
#include "server/base/clock.h"
#include "server/base/mutex.h"

namespace nibble::registry {

enum class UploadKind { kDataset, kModel };
enum class UploadState { kReceiving, kInterrupted, kFinishing, kFinished };

// The received part of an upload. The destructor removes its files. Each kind of upload has its own subclass.
class UploadContent {
 public:
  virtual ~UploadContent() = default;
  virtual std::int32_t num_files() const = 0;
};

struct UploadTableOptions {
  std::int64_t max_bytes_per_principal = 0;  // of all present uploads of one principal; 0: no limit
  std::int64_t max_uploads = 1000;           // of one principal
  absl::Duration kept = absl::Hours(1);      // time that an upload is kept after its stream was lost or finished
};

// The data of GetUpload.
struct UploadInfo {
  std::uint64_t number = 0;  // ascends in the order of beginning
  std::string id;
  auth::RequestOwner owner;
  UploadKind kind = UploadKind::kDataset;
  UploadState state = UploadState::kReceiving;
  std::string name;
  std::int64_t bytes = 0;
  std::int32_t num_files = 0;
  absl::Time created;
  absl::Time expires = absl::InfiniteFuture();  // of kInterrupted and kFinished
};

// Thread-safe.
class UploadTable {
 public:
  class Entry;
  // Ends the current stream of an upload. Called without a lock, at most once.
  using End = std::function<void(const absl::Status& why)>;
  struct Start {
    auth::RequestOwner owner;
    std::string id;  // "": the table chooses an id, and the upload ends with its stream
    UploadKind kind = UploadKind::kDataset;
    std::string name;
    std::int64_t size_bytes = 0;  // 0: unknown
  };

  // A stream's handle of its upload. Destroying it without Keep or Finish drops the upload. One thread.
  class Stream {
   public:
    Stream(UploadTable& table, std::shared_ptr<Entry> entry, std::uint64_t turn)
        : table_(table), entry_(std::move(entry)), turn_(turn) {}
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    const std::string& id() const;
    // Hold this lock during Check and all use of the content. A stream that takes over the upload, or a call that drops
    // it, waits for this lock.
    base::Mutex& using_content();
    std::unique_ptr<UploadContent>& content();
    // OK: the content exists and belongs to this stream. Errors: Cancelled (CancelUpload, or a new upload with
    // the same id), Aborted (another stream took over).
    absl::Status Check() const;
    // Check(), then counts `bytes` against the quota. Call this before taking the bytes. Errors also: ResourceExhausted
    // (UPLOAD_QUOTA).
    absl::Status Charge(std::int64_t bytes);
    // The last message has arrived: from now on no other stream can take over the upload. Errors: those of Check.
    absl::Status BeginFinish();
    // Marks the upload finished and returns when it expires; a second call returns the same. Requires using_content.
    absl::Time Finish();
    // The stream was lost: keeps the upload if the client gave it an id.
    void Keep();

   private:
    UploadTable& table_;
    const std::shared_ptr<Entry> entry_;
    const std::uint64_t turn_;
    bool over_ = false;
  };

  UploadTable(base::Clock& clock, UploadTableOptions options) : clock_(clock), options_(options) {}

  // Begins an upload, and replaces an upload with the same id. Errors: InvalidArgument (upload_id), ResourceExhausted
  // (UPLOAD_QUOTA), Aborted (the existing upload is being finished or begun).
  absl::StatusOr<std::unique_ptr<Stream>> Begin(const Start& start, End end);
  // Takes over an upload of that id and kind, also from a stream that has not noticed its lost connection. Errors:
  // NotFound (UPLOAD), InvalidArgument (resume_offset differs from the received bytes, name differs), Aborted (it is
  // being finished).
  absl::StatusOr<std::unique_ptr<Stream>> Resume(const Start& start, std::int64_t offset, End end);

  // Uploads of the viewer; for an admin without a tenant, of all principals. Errors: NotFound (UPLOAD).
  absl::StatusOr<UploadInfo> Get(const auth::Principal& viewer, const std::string& id) const;
  std::vector<UploadInfo> List(const auth::Principal& viewer) const;  // by number
  absl::Status Cancel(const auth::Principal& viewer, const std::string& id);

  // For finished uploads of models. The bytes count against the quota until the content is destroyed. Errors: NotFound
  // (UPLOAD).
  absl::Status CheckFinished(const auth::RequestOwner& owner, const std::string& id) const;
  struct Taken {
    std::shared_ptr<Entry> entry;
    std::shared_ptr<UploadContent> content;
  };
  absl::StatusOr<Taken> TakeFinished(const auth::RequestOwner& owner, const std::string& id);
  // Makes the upload available again, unless another upload has taken its id.
  void PutBack(const Taken& taken);
  void DropOld();  // drops uploads that have expired

 private:
  using Key = std::pair<auth::RequestOwner, std::string>;
  // Bytes that each principal's uploads hold. May outlive the table, because contents in use share it.
  struct Usage {
    base::Mutex mutex;
    std::map<auth::RequestOwner, std::int64_t> bytes ABSL_GUARDED_BY(mutex);
  };

  // Drops an upload that is about to be replaced, so that its bytes no longer count when CheckQuota counts the new one.
  absl::Status DropReplaced(const Key& key);
  absl::Status CheckQuota(const Start& start) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Entry> FindEntry(const auth::Principal& viewer, const std::string& id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const Entry* FindFinished(const auth::RequestOwner& owner, const std::string& id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckTurn(const Entry& entry, std::uint64_t turn) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Entry> Erase(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets the upload wait for its use or for another stream. Requires using_content, unless the upload was finished.
  void Park(Entry& entry, UploadState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  base::Clock& clock_;
  const UploadTableOptions options_;
  const std::shared_ptr<Usage> usage_ = std::make_shared<Usage>();
  mutable base::Mutex mutex_;
  std::uint64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Key, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::registry
