#include "server/registry/upload_table.h"

#include <algorithm>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::registry {

using base::StrCat;

namespace {

absl::Status NoUpload(const std::string& id) {
  return base::WithReason(absl::NotFoundError("upload_id: you have no such upload; uploads are kept for a limited time "
                                              "after their stream was lost or finished, and an uploaded model can be "
                                              "imported only once"),
                          "UPLOAD", {{"name", id.substr(0, 64)}});
}

}  // namespace

// The table's mutex_ guards the fields unless their comments say otherwise.
class UploadTable::Entry {
 public:
  Entry(std::shared_ptr<Usage> usage, const Start& start, std::string id_in)
      : owner(start.owner), usage_(std::move(usage)) {
    info.id = std::move(id_in);
    info.owner = start.owner;
    info.kind = start.kind;
    info.name = start.name;
    resumable = !start.id.empty();
  }
  ~Entry() { Release(); }
  // Removes the content, then returns its bytes to the quota. Requires using_content, or the last reference to the
  // entry.
  void Release() {
    content.reset();
    base::MutexLock lock(usage_->mutex);
    const auto at = usage_->bytes.find(owner);
    if (at != usage_->bytes.end() && (at->second -= charged) <= 0) usage_->bytes.erase(at);
    charged = 0;
  }

  const auth::RequestOwner owner;
  UploadInfo info;
  bool resumable = false;
  bool gone = false;                                // cancelled, expired, replaced or used
  std::uint64_t turn = 1;                           // of the current stream; a later stream takes over
  absl::Duration until = absl::InfiniteDuration();  // expiry, monotonic
  End end;                                          // ends the current stream
  std::int64_t charged = 0;                         // guarded by Usage::mutex

  base::Mutex using_content;
  // Guarded by using_content. From the end of the upload until it is dropped it does not change.
  std::unique_ptr<UploadContent> content;

  std::shared_ptr<Usage> usage_;
};

UploadTable::Stream::~Stream() {
  if (over_) return;
  std::shared_ptr<Entry> dropped;  // destroyed after the unlock
  base::MutexLock lock(table_.mutex_);
  if (!table_.CheckTurn(*entry_, turn_).ok()) return;
  if (entry_->info.state == UploadState::kFinished) {  // the stream resumed a finished upload to get its answer again
    entry_->end = nullptr;
  } else {
    dropped = table_.Erase(*entry_);
  }
}

const std::string& UploadTable::Stream::id() const { return entry_->info.id; }
base::Mutex& UploadTable::Stream::using_content() { return entry_->using_content; }
std::unique_ptr<UploadContent>& UploadTable::Stream::content() { return entry_->content; }

absl::Status UploadTable::CheckTurn(const Entry& entry, std::uint64_t turn) const {
  if (entry.gone) return absl::CancelledError("the upload was cancelled");
  if (entry.turn != turn) return absl::AbortedError("another stream has taken over the upload");
  return absl::OkStatus();
}

absl::Status UploadTable::Stream::Check() const {
  base::MutexLock lock(table_.mutex_);
  return table_.CheckTurn(*entry_, turn_);
}

absl::Status UploadTable::Stream::Charge(std::int64_t bytes) {
  base::MutexLock lock(table_.mutex_);
  NIBBLE_RETURN_IF_ERROR(table_.CheckTurn(*entry_, turn_));
  const std::int64_t limit = table_.options_.max_bytes_per_principal;
  {
    base::MutexLock counting(table_.usage_->mutex);
    std::int64_t& held = table_.usage_->bytes[entry_->owner];
    if (limit > 0 && bytes > limit - held) {
      return base::WithReason(absl::ResourceExhaustedError(StrCat("your uploads hold ", held, " bytes, the limit is ",
                                                                  limit, ": import or cancel some")),
                              "UPLOAD_QUOTA",
                              {{"max_bytes", std::to_string(limit)}, {"held_bytes", std::to_string(held)}});
    }
    held += bytes;
    entry_->charged += bytes;
  }
  entry_->info.bytes += bytes;
  if (entry_->content != nullptr) entry_->info.num_files = entry_->content->num_files();
  return absl::OkStatus();
}

absl::Status UploadTable::Stream::BeginFinish() {
  base::MutexLock lock(table_.mutex_);
  NIBBLE_RETURN_IF_ERROR(table_.CheckTurn(*entry_, turn_));
  entry_->info.state = UploadState::kFinishing;
  return absl::OkStatus();
}

absl::Time UploadTable::Stream::Finish() {
  over_ = true;
  base::MutexLock lock(table_.mutex_);
  entry_->end = nullptr;
  if (entry_->info.state != UploadState::kFinished) table_.Park(*entry_, UploadState::kFinished);
  return entry_->info.expires;
}

void UploadTable::Stream::Keep() {
  base::MutexLock content(entry_->using_content);
  base::MutexLock lock(table_.mutex_);
  if (!entry_->resumable || !table_.CheckTurn(*entry_, turn_).ok() || entry_->info.state != UploadState::kReceiving)
    return;
  over_ = true;
  table_.Park(*entry_, UploadState::kInterrupted);
}

void UploadTable::Park(Entry& entry, UploadState state) {
  if (entry.content != nullptr) entry.info.num_files = entry.content->num_files();
  entry.info.state = state;
  entry.info.expires = clock_.Now() + options_.kept;
  entry.until = clock_.Monotonic() + options_.kept;
  entry.end = nullptr;
}

absl::Status UploadTable::CheckQuota(const Start& start) const {
  std::int64_t number = 0;
  for (const auto& [key, entry] : entries_) {
    if (key.first == start.owner) ++number;
  }
  if (number >= options_.max_uploads) {
    return base::WithReason(absl::ResourceExhaustedError(StrCat("you have ", number, " uploads, the limit is ",
                                                                options_.max_uploads, ": import or cancel some")),
                            "UPLOAD_QUOTA", {{"max_uploads", std::to_string(options_.max_uploads)}});
  }
  const std::int64_t limit = options_.max_bytes_per_principal;
  if (limit <= 0) return absl::OkStatus();
  base::MutexLock counting(usage_->mutex);
  const auto at = usage_->bytes.find(start.owner);
  const std::int64_t held = at == usage_->bytes.end() ? 0 : at->second;
  if (start.size_bytes <= limit - held) return absl::OkStatus();
  return base::WithReason(
      absl::ResourceExhaustedError(StrCat("size_bytes: ", start.size_bytes, ", your uploads hold ", held,
                                          " bytes, the limit is ", limit, ": import or cancel some")),
      "UPLOAD_QUOTA", {{"max_bytes", std::to_string(limit)}, {"held_bytes", std::to_string(held)}});
}

std::shared_ptr<UploadTable::Entry> UploadTable::Erase(const Entry& entry) {
  const auto at = entries_.find({entry.owner, entry.info.id});
  if (at == entries_.end() || at->second.get() != &entry) return nullptr;
  std::shared_ptr<Entry> erased = std::move(at->second);
  erased->gone = true;
  entries_.erase(at);
  return erased;
}

absl::StatusOr<std::unique_ptr<UploadTable::Stream>> UploadTable::Begin(const Start& start, End end) {
  if (!start.id.empty()) NIBBLE_RETURN_IF_ERROR(base::CheckName("header.upload_id", start.id));
  DropOld();
  const std::string id = start.id.empty() ? base::NewId("upload") : start.id;
  NIBBLE_RETURN_IF_ERROR(DropReplaced({start.owner, id}));
  base::MutexLock lock(mutex_);
  if (entries_.contains({start.owner, id})) {
    return absl::AbortedError("upload_id: another stream is beginning the upload");
  }
  NIBBLE_RETURN_IF_ERROR(CheckQuota(start));
  auto entry = std::make_shared<Entry>(usage_, start, id);
  entry->info.number = ++last_number_;
  entry->info.created = clock_.Now();
  entry->end = std::move(end);
  entries_[{start.owner, id}] = entry;
  return std::make_unique<Stream>(*this, std::move(entry), /*turn=*/1);
}

absl::Status UploadTable::DropReplaced(const Key& key) {
  std::shared_ptr<Entry> replaced;
  End end;
  {
    base::MutexLock lock(mutex_);
    const auto at = entries_.find(key);
    if (at == entries_.end()) return absl::OkStatus();
    if (at->second->info.state == UploadState::kFinishing)
      return absl::AbortedError("upload_id: the upload is being finished");
    replaced = Erase(*at->second);
    end.swap(replaced->end);
  }
  if (end) end(absl::AbortedError("a new upload with the same id has replaced this one"));
  base::MutexLock content(replaced->using_content);
  replaced->Release();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<UploadTable::Stream>> UploadTable::Resume(const Start& start, std::int64_t offset,
                                                                         End end) {
  DropOld();
  std::shared_ptr<Entry> entry;
  End end_other;
  std::unique_ptr<Stream> stream;
  {
    base::MutexLock lock(mutex_);
    const auto at = entries_.find({start.owner, start.id});
    if (at == entries_.end() || at->second->info.kind != start.kind) return NoUpload(start.id);
    entry = at->second;
    if (entry->info.state == UploadState::kFinishing)
      return absl::AbortedError("upload_id: the upload is being finished");
    if (entry->info.name != start.name) {
      return base::FieldError("header.name", StrCat("wanted ", entry->info.name, ", the name of the upload"));
    }
    // A finished upload stays finished: the stream only gets its answer again.
    if (entry->info.state != UploadState::kFinished) {
      entry->info.state = UploadState::kReceiving;
      entry->info.expires = absl::InfiniteFuture();
      entry->until = absl::InfiniteDuration();
    }
    end_other.swap(entry->end);
    entry->end = std::move(end);
    stream = std::make_unique<Stream>(*this, entry, ++entry->turn);
  }
  if (end_other) end_other(absl::AbortedError("another stream has taken over the upload"));
  // Wait until the other stream has processed its current message.
  std::int64_t arrived = 0;
  {
    base::MutexLock content(entry->using_content);
    base::MutexLock lock(mutex_);
    arrived = entry->info.bytes;
  }
  if (offset == arrived) return stream;
  stream->Keep();
  return base::FieldError("header.resume_offset", StrCat("is ", offset, ", wanted ", arrived, ", the bytes received"));
}

std::shared_ptr<UploadTable::Entry> UploadTable::FindEntry(const auth::Principal& viewer, const std::string& id) const {
  if (const auto own = entries_.find({auth::OwnerOf(viewer), id}); own != entries_.end()) return own->second;
  if (!auth::SeesAll(viewer)) return nullptr;
  const auto any =
      std::find_if(entries_.begin(), entries_.end(), [&](const auto& one) { return one.first.second == id; });
  return any == entries_.end() ? nullptr : any->second;
}

absl::StatusOr<UploadInfo> UploadTable::Get(const auth::Principal& viewer, const std::string& id) const {
  base::MutexLock lock(mutex_);
  const auto entry = FindEntry(viewer, id);
  if (entry == nullptr) return NoUpload(id);
  return entry->info;
}

std::vector<UploadInfo> UploadTable::List(const auth::Principal& viewer) const {
  std::vector<UploadInfo> all;
  {
    base::MutexLock lock(mutex_);
    for (const auto& [key, entry] : entries_) {
      if (auth::SeesAll(viewer) || key.first == auth::OwnerOf(viewer)) all.push_back(entry->info);
    }
  }
  std::sort(all.begin(), all.end(), [](const UploadInfo& a, const UploadInfo& b) { return a.number < b.number; });
  return all;
}

absl::Status UploadTable::Cancel(const auth::Principal& viewer, const std::string& id) {
  std::shared_ptr<Entry> dropped;
  End end;
  bool writing = false;
  {
    base::MutexLock lock(mutex_);
    const auto entry = FindEntry(viewer, id);
    if (entry == nullptr) return NoUpload(id);
    writing = entry->info.state == UploadState::kFinishing;
    dropped = Erase(*entry);
    end.swap(dropped->end);
  }
  if (end) end(absl::CancelledError("the upload was cancelled by CancelUpload"));
  if (writing) return absl::OkStatus();  // the stream that writes the dataset removes the content
  base::MutexLock content(dropped->using_content);
  dropped->Release();
  return absl::OkStatus();
}

const UploadTable::Entry* UploadTable::FindFinished(const auth::RequestOwner& owner, const std::string& id) const {
  const auto at = entries_.find({owner, id});
  if (at == entries_.end() || at->second->info.state != UploadState::kFinished) return nullptr;
  return at->second->info.kind == UploadKind::kModel ? at->second.get() : nullptr;
}

absl::Status UploadTable::CheckFinished(const auth::RequestOwner& owner, const std::string& id) const {
  base::MutexLock lock(mutex_);
  return FindFinished(owner, id) != nullptr ? absl::OkStatus() : NoUpload(id);
}

absl::StatusOr<UploadTable::Taken> UploadTable::TakeFinished(const auth::RequestOwner& owner, const std::string& id) {
  base::MutexLock lock(mutex_);
  const Entry* const finished = FindFinished(owner, id);
  if (finished == nullptr) return NoUpload(id);
  const std::shared_ptr<Entry> entry = Erase(*finished);
  return Taken{entry, std::shared_ptr<UploadContent>(entry, entry->content.get())};
}

void UploadTable::PutBack(const Taken& taken) {
  base::MutexLock lock(mutex_);
  if (!entries_.emplace(Key(taken.entry->owner, taken.entry->info.id), taken.entry).second) return;
  taken.entry->gone = false;
  Park(*taken.entry, UploadState::kFinished);
}

void UploadTable::DropOld() {
  std::vector<std::shared_ptr<Entry>> dropped;  // destroyed after the unlock
  const absl::Duration now = clock_.Monotonic();
  base::MutexLock lock(mutex_);
  for (const auto& [key, entry] : entries_) {
    if (entry->until <= now) dropped.push_back(entry);
  }
  for (const auto& entry : dropped) Erase(*entry);
}

}  // namespace nibble::registry
