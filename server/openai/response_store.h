// Responses that clients may read again or continue (`store` of /v1/responses). In memory only: a restart loses them.
#pragma once
#include <atomic>
#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/mutex.h"

namespace nibble::openai {

// A message or a call of a conversation, as JSON of OpenAI's API.
struct ResponseItem {
  std::string id;
  std::string json;
};

// The items of one response. Responses that continue it share it, also after it was deleted.
struct Turn {
  std::shared_ptr<const Turn> previous;  // nullptr: none
  std::vector<ResponseItem> input;
  std::vector<ResponseItem> output;
  std::size_t total_bytes = 0;           // of this turn and those before
  int num_turns = 1;                     // this turn and those before
  std::shared_ptr<const void> charge{};  // of its bytes
};

// Those of the turn and all before it, oldest first.
std::vector<const Turn*> TurnsUpTo(const Turn* turn);

struct StoredResponse {
  std::string id;  // "resp_..."
  // The response as JSON: before the elements of `output`, and after them.
  std::string head;
  std::string tail;
  std::shared_ptr<const Turn> turn;
  std::shared_ptr<const void> charge{};  // of its bytes

  std::string Json() const;
};

struct ResponseStoreOptions {
  absl::Duration ttl = absl::Hours(1);  // zero: nothing is kept
  std::size_t max_bytes = 64 << 20;
};

// Every response belongs to an owner (auth::FairnessKey), and no other owner can see it. An owner may use half of the
// bytes. The owner "", which stands for all callers of a server without tokens, may use all of them. A new response
// evicts the oldest responses of its owner if the owner has too many bytes, and those of the owner with the most bytes
// if all together have too many. Thread-safe.
class ResponseStore {
 public:
  // `clock` must outlive it.
  ResponseStore(ResponseStoreOptions options, base::Clock& clock) : options_(options), clock_(clock) {}
  ~ResponseStore();

  bool keeps_any() const { return options_.ttl > absl::ZeroDuration(); }
  std::size_t max_bytes_of(std::string_view owner) const {
    return owner.empty() ? options_.max_bytes : options_.max_bytes / 2;
  }

  // False: the response is not kept, because the conversation has more bytes than the owner may use, alone or together
  // with turns that requests of the owner still hold. `turn.previous` may be set; the other members of `turn` besides
  // its items are set here.
  bool Add(const std::string& owner, StoredResponse response, Turn turn);
  // nullptr: none, or of another owner, or expired.
  std::shared_ptr<const StoredResponse> Find(const std::string& owner, const std::string& id);
  bool Erase(const std::string& owner, const std::string& id);

  struct Level {
    std::size_t responses = 0;
    std::size_t bytes = 0;  // also of deleted turns that a later response needs
  };
  // Drops expired responses first.
  Level Now();

 private:
  class Charge;
  using Bytes = std::shared_ptr<std::atomic<std::size_t>>;
  struct Entry;
  using Entries = std::list<Entry>;
  struct Owner {
    std::list<Entries::iterator> by_age;  // oldest first
    Bytes bytes = std::make_shared<std::atomic<std::size_t>>(0);
  };
  using Owners = std::map<std::string, Owner>;
  struct Entry {
    std::shared_ptr<const StoredResponse> response;
    absl::Duration expires;  // monotonic
    Owners::iterator owner;
    std::list<Entries::iterator>::iterator in_owner;
  };

  // Owners without responses whose turns are gone too.
  void DropOwners() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropExpired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Keeps the newest response.
  void Evict(Owners::iterator newest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ResponseStoreOptions options_;
  base::Clock& clock_;
  const Bytes bytes_ = std::make_shared<std::atomic<std::size_t>>(0);
  base::Mutex mutex_;
  Owners owners_ ABSL_GUARDED_BY(mutex_);
  Entries entries_ ABSL_GUARDED_BY(mutex_);  // oldest first
  std::unordered_map<std::string, Entries::iterator> by_id_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::openai
