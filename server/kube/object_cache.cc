#include "server/kube/object_cache.h"

#include <map>
#include <optional>
#include <utility>

#include "server/base/log.h"
#include "server/base/mutex.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/kube/backoff.h"
#include "server/kube/names.h"

namespace nibble::kube {

namespace {

using base::Json;
using base::StrCat;
using Objects = std::map<std::string, ObjectCache::Object>;  // by name

// A watch that ends without an event before this time has failed, whatever its status.
constexpr absl::Duration kShortWatch = absl::Seconds(1);

absl::StatusOr<std::string> MetadataOf(const Json& object, const char* name) {
  const auto metadata = object.is_object() ? object.find("metadata") : object.end();
  if (metadata == object.end()) return absl::InternalError("an object has no metadata");
  auto text = base::GetString(*metadata, name, "metadata");
  return text.ok() ? text : absl::InternalError(text.status().message());
}

}  // namespace

// Members without a lock belong to the client's thread. Callbacks of the client hold a weak pointer: one that comes
// after the cache is gone does nothing.
struct ObjectCache::State : std::enable_shared_from_this<State> {
  State(ApiClient& given_client, ObjectCacheOptions given)
      : client(given_client), options(std::move(given)), backoff(options.min_pause, options.max_pause, options.seed) {}

  void Stop();
  // A function that calls `member` unless the cache is gone.
  template <typename... Args>
  auto Later(void (State::*member)(Args...)) {
    return [weak = weak_from_this(), member](Args... args) {
      const auto self = weak.lock();
      if (self != nullptr && !self->stopped) (self.get()->*member)(std::forward<Args>(args)...);
    };
  }
  void NoteContact();
  void NoteChange() const {
    if (options.on_change) options.on_change();
  }
  Object Trimmed(Json object) const;

  void List();
  void OnPage(absl::StatusOr<ApiAnswer> answer);
  // Adds the page's objects to `listed`. True: it was the last page.
  absl::StatusOr<bool> AddPage(Json& page);
  void Watch();
  void OnEvent(const std::string& type, Json object);
  absl::Status Apply(const std::string& type, Json object);
  void OnWatchEnd(absl::Status status, std::optional<absl::Duration> retry_after);
  // Continues with `next` after a pause, or with a new list if the version is of no use.
  void Retry(const absl::Status& status, std::optional<absl::Duration> retry_after, void (State::*next)());

  ApiClient& client;
  const ObjectCacheOptions options;
  Backoff backoff;
  bool stopped = false;
  Objects listed;         // by the pages of an unfinished list
  std::string next_page;  // the server's token; "": the first page
  std::string version;    // of the collection, as known so far
  std::unique_ptr<ApiClient::Watch> watch;
  absl::Duration watch_begin;
  bool watch_had_event = false;

  mutable base::Mutex mutex;
  Objects objects ABSL_GUARDED_BY(mutex);
  bool synced ABSL_GUARDED_BY(mutex) = false;
  absl::Duration last_contact ABSL_GUARDED_BY(mutex) = -absl::InfiniteDuration();
};

void ObjectCache::State::Stop() {
  stopped = true;
  watch = nullptr;
}

void ObjectCache::State::NoteContact() {
  const absl::Duration now = options.clock->Monotonic();
  base::MutexLock lock(mutex);
  last_contact = now;
}

ObjectCache::Object ObjectCache::State::Trimmed(Json object) const {
  if (options.trim) options.trim(object);
  return std::make_shared<const Json>(std::move(object));
}

void ObjectCache::State::List() {
  ApiRequest request;
  request.target = StrCat(options.target, options.target.find('?') == std::string::npos ? "?" : "&",
                          "limit=", options.page, next_page.empty() ? "" : "&continue=", PercentEncode(next_page));
  client.Request(std::move(request), Later(&State::OnPage));
}

void ObjectCache::State::OnPage(absl::StatusOr<ApiAnswer> answer) {
  if (!answer.ok()) return Retry(answer.status(), std::nullopt, &State::List);
  if (const absl::Status status = StatusOf(*answer); !status.ok())
    return Retry(status, answer->retry_after, &State::List);
  const auto is_last = AddPage(answer->json);
  if (!is_last.ok()) return Retry(is_last.status(), std::nullopt, &State::List);
  NoteContact();
  if (!*is_last) return List();
  {
    base::MutexLock lock(mutex);
    objects.swap(listed);
    synced = true;
  }
  listed.clear();
  NoteChange();
  if (!stopped) Watch();
}

absl::StatusOr<bool> ObjectCache::State::AddPage(Json& page) {
  const auto items = page.is_object() ? page.find("items") : page.end();
  // Go writes an empty slice as null.
  if (items == page.end() || !(items->is_array() || items->is_null())) return absl::InternalError("not a list");
  NIBBLE_ASSIGN_OR_RETURN(std::string listed_version, MetadataOf(page, "resourceVersion"));
  for (Json& item : *items) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string name, MetadataOf(item, "name"));
    listed[name] = Trimmed(std::move(item));
  }
  next_page = MetadataOf(page, "continue").value_or("");
  if (!next_page.empty()) return false;
  version = std::move(listed_version);
  return true;
}

void ObjectCache::State::Watch() {
  watch_begin = options.clock->Monotonic();
  watch_had_event = false;
  ApiWatch next;
  next.target = options.target;
  next.resource_version = version;
  next.on_open = Later(&State::NoteContact);
  next.on_event = Later(&State::OnEvent);
  next.on_end = Later(&State::OnWatchEnd);
  watch = client.StartWatch(std::move(next));
}

void ObjectCache::State::OnEvent(const std::string& type, Json object) {
  const absl::Status status = Apply(type, std::move(object));
  if (!status.ok()) return OnWatchEnd(status, std::nullopt);
  NoteContact();
  watch_had_event = true;
  backoff.Reset();
  if (type != "BOOKMARK") NoteChange();
}

absl::Status ObjectCache::State::Apply(const std::string& type, Json object) {
  if (type == "ERROR") {
    ApiAnswer answer;
    answer.status = static_cast<int>(base::GetInt(object, "code", "error").value_or(500));
    answer.json = std::move(object);
    const absl::Status status = StatusOf(answer);
    return absl::IsOutOfRange(status) ? status : absl::InternalError(StrCat("a watch failed: ", status.message()));
  }
  NIBBLE_ASSIGN_OR_RETURN(std::string object_version, MetadataOf(object, "resourceVersion"));
  if (type != "BOOKMARK") {
    NIBBLE_ASSIGN_OR_RETURN(const std::string name, MetadataOf(object, "name"));
    Object current = type == "DELETED" ? nullptr : Trimmed(std::move(object));
    base::MutexLock lock(mutex);
    if (current == nullptr) {
      objects.erase(name);
    } else {
      objects[name] = std::move(current);
    }
  }
  version = std::move(object_version);
  return absl::OkStatus();
}

void ObjectCache::State::OnWatchEnd(absl::Status status, std::optional<absl::Duration> retry_after) {
  watch = nullptr;
  if (status.ok() && !watch_had_event && options.clock->Monotonic() - watch_begin < kShortWatch)
    status = absl::UnavailableError("the API server ended a watch at once");
  if (!status.ok()) return Retry(status, retry_after, &State::Watch);
  backoff.Reset();
  Watch();
}

void ObjectCache::State::Retry(const absl::Status& status, std::optional<absl::Duration> retry_after,
                               void (State::*next)()) {
  const bool expired = absl::IsOutOfRange(status);
  // After an answer or a version that made no sense, start over with a new list.
  if (expired || absl::IsInternal(status) || absl::IsInvalidArgument(status)) {
    next = &State::List;
    next_page.clear();
    listed.clear();
  }
  if (!expired && backoff.num_failures() == 0)
    base::LogWarning("cannot watch objects of the cluster", {{"target", options.target}, {"why", status.message()}});
  client.RunAfter(backoff.Next(retry_after), Later(next));
}

ObjectCache::ObjectCache(ApiClient& client, ObjectCacheOptions options)
    : client_(client), state_(std::make_shared<State>(client, std::move(options))) {
  client_.RunAfter(absl::ZeroDuration(), state_->Later(&State::List));
}

ObjectCache::~ObjectCache() {
  client_.RunAndWait([this] { state_->Stop(); });
}

ObjectCache::Object ObjectCache::Find(const std::string& name) const {
  base::MutexLock lock(state_->mutex);
  const auto found = state_->objects.find(name);
  return found == state_->objects.end() ? nullptr : found->second;
}

std::vector<ObjectCache::Object> ObjectCache::Snapshot() const {
  base::MutexLock lock(state_->mutex);
  std::vector<Object> snapshot;
  snapshot.reserve(state_->objects.size());
  for (const auto& [name, object] : state_->objects) snapshot.push_back(object);
  return snapshot;
}

bool ObjectCache::synced() const {
  base::MutexLock lock(state_->mutex);
  return state_->synced;
}

absl::Duration ObjectCache::last_contact() const {
  base::MutexLock lock(state_->mutex);
  return state_->last_contact;
}

}  // namespace nibble::kube
