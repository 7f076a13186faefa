// Uploads that are under way, were interrupted, or wait to be used: whose they are, how much they hold, and when they go.
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
#include "server/base/clock.h"
#include "server/base/mutex.h"
#include "server/rpc/request_owner.h"

namespace nibble::rpc {

enum class UploadKind { kDataset, kModel };
enum class UploadState { kReceiving, kInterrupted, kFinishing, kFinished };

// What has arrived; its files go with it. The sinks of each kind have their own.
class UploadContent {
 public:
  virtual ~UploadContent() = default;
  virtual std::int32_t num_files() const = 0;
};

struct UploadTableOptions {
  std::int64_t max_bytes_per_principal = 0;  // of all uploads of one principal that are here; 0: no bound
  std::int64_t max_uploads = 1000;           // of one principal
  absl::Duration kept = absl::Hours(1);      // after a stream was lost, or has finished
};

// What GetUpload tells.
struct UploadInfo {
  std::uint64_t number = 0;  // in the order of their beginning
  std::string id;
  RequestOwner owner;
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
  // Ends the stream that sends to an upload. Called without a lock, at most once.
  using End = std::function<void(const absl::Status& why)>;
  struct Start {
    RequestOwner owner;
    std::string id;  // "": made here, and what has arrived goes with its stream
    UploadKind kind = UploadKind::kDataset;
    std::string name;
    std::int64_t size_bytes = 0;  // 0: not known
  };

  // A stream's hold on its upload. Dropped without Keep or Finish, it drops the upload. One thread, but for what is said.
  class Stream {
   public:
    Stream(UploadTable& table, std::shared_ptr<Entry> entry, std::uint64_t turn)
        : table_(table), entry_(std::move(entry)), turn_(turn) {}
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    const std::string& id() const;
    // Hold it during Check and all use of the content: a stream that takes the upload over, or a call that drops it, waits for this lock.
    base::Mutex& using_content();
    std::unique_ptr<UploadContent>& content();
    // The content is there, and this stream's. Errors: Cancelled (by CancelUpload), Aborted (another stream took over).
    absl::Status Check() const;
    // Check, before `bytes` are taken in. Errors also: ResourceExhausted (UPLOAD_QUOTA).
    absl::Status Charge(std::int64_t bytes);
    // The last message has come: no other stream takes the upload over any more. Errors as of Check.
    absl::Status BeginFinish();
    // Marks the upload finished and returns when it expires; a second call returns the same. Requires using_content.
    absl::Time Finish();
    // The stream was lost: what has arrived is kept, where the client named the upload.
    void Keep();

   private:
    UploadTable& table_;
    const std::shared_ptr<Entry> entry_;
    const std::uint64_t turn_;
    bool over_ = false;
  };

  UploadTable(base::Clock& clock, UploadTableOptions options) : clock_(clock), options_(options) {}

  // In place of an upload of that id, if there is one. Errors: InvalidArgument (upload_id), ResourceExhausted (UPLOAD_QUOTA), Aborted
  // (the one before is being finished).
  absl::StatusOr<std::unique_ptr<Stream>> Begin(const Start& start, End end);
  // Takes over an upload of that id and kind, from a stream that still hangs too. Errors: NotFound (UPLOAD), InvalidArgument
  // (resume_offset is not what has arrived, name is another), Aborted as of Begin.
  absl::StatusOr<std::unique_ptr<Stream>> Resume(const Start& start, std::int64_t offset, End end);

  // Of the viewer, or of all where it is an admin without a tenant. NotFound (UPLOAD).
  absl::StatusOr<UploadInfo> Get(const Principal& viewer, const std::string& id) const;
  std::vector<UploadInfo> List(const Principal& viewer) const;  // by number
  absl::Status Cancel(const Principal& viewer, const std::string& id);

  // Of a finished model. The bytes count until the content has gone. NotFound (UPLOAD).
  absl::Status CheckFinished(const RequestOwner& owner, const std::string& id) const;
  struct Taken {
    std::shared_ptr<Entry> entry;
    std::shared_ptr<UploadContent> content;
  };
  absl::StatusOr<Taken> TakeFinished(const RequestOwner& owner, const std::string& id);
  // It waits for its use anew, unless another upload has its id by now.
  void PutBack(const Taken& taken);
  void DropOld();

 private:
  using Key = std::pair<RequestOwner, std::string>;
  // What the uploads of each principal hold. Outlives the table with the contents that are in use.
  struct Usage {
    base::Mutex mutex;
    std::map<RequestOwner, std::int64_t> bytes ABSL_GUARDED_BY(mutex);
  };

  // An upload that is begun anew under its id gives its bytes back first.
  absl::Status DropReplaced(const Key& key);
  absl::Status CheckQuota(const Start& start) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Entry> FindEntry(const Principal& viewer, const std::string& id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const Entry* FindFinished(const RequestOwner& owner, const std::string& id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckTurn(const Entry& entry, std::uint64_t turn) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Entry> Erase(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The upload waits for its use, or for another stream. Requires using_content.
  void Park(Entry& entry, UploadState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  base::Clock& clock_;
  const UploadTableOptions options_;
  const std::shared_ptr<Usage> usage_ = std::make_shared<Usage>();
  mutable base::Mutex mutex_;
  std::uint64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Key, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::rpc
