// The objects of one collection of the API server, kept current by a watch.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/json.h"
#include "server/kube/api_client.h"

namespace nibble::kube {

struct ObjectCacheOptions {
  std::string target;  // path and query of the list: "/api/v1/namespaces/ml/pods?labelSelector=..."
  // Removes from an object what the caller does not need. Must keep metadata.name; may be null.
  std::function<void(base::Json& object)> trim;
  // The objects changed. Called on the client's thread without locks; must not block or throw; may be null.
  std::function<void()> on_change;
  int page = 500;                                                                     // objects per answer of a list
  absl::Duration min_pause = absl::Milliseconds(500), max_pause = absl::Seconds(30);  // after errors
  std::uint64_t seed = 0;                                                             // of the pauses
  base::Clock* clock = &base::RealClock();
};

// Lists the collection, then watches it from the list's version. A watch that ends or is cut continues from the last
// version that the server sent. The collection is listed again if the server no longer has that version or refuses it,
// or if the watch sent an error or an event that cannot be read. After errors the cache keeps its objects and tries
// again until it is destroyed, after growing pauses, and no sooner than the server asks (Retry-After). Logs the first
// of several errors in a row. Reads never wait for the server. Thread-safe.
class ObjectCache {
 public:
  using Object = std::shared_ptr<const base::Json>;

  // The client must outlive the cache.
  ObjectCache(ApiClient& client, ObjectCacheOptions options);
  // on_change is not running and is not called again once this returns. Waits for a running callback of the client,
  // never for the network.
  ~ObjectCache();
  ObjectCache(const ObjectCache&) = delete;
  ObjectCache& operator=(const ObjectCache&) = delete;

  // Null if there is none, or if none is known yet (synced).
  Object Find(const std::string& name) const;
  std::vector<Object> Snapshot() const;  // sorted by name
  bool synced() const;                   // the whole collection has been listed once
  // When the server last sent an answer to a list, opened a watch or sent an event: monotonic time of the clock,
  // negative infinity before. The server sends a bookmark about once a minute even if nothing changes.
  absl::Duration last_contact() const;

 private:
  struct State;
  ApiClient& client_;
  const std::shared_ptr<State> state_;
};

}  // namespace nibble::kube
