#include "server/openai/response_store.h"

#include <algorithm>
#include <utility>

#include "server/base/strings.h"

namespace nibble::openai {

namespace {

// Bytes counted for each response and each item in addition to their texts. kResponseOverhead also bounds the number of
// responses.
constexpr std::size_t kResponseOverhead = 1024;
constexpr std::size_t kItemOverhead = 128;

std::size_t BytesOf(const std::vector<ResponseItem>& items) {
  std::size_t bytes = 0;
  for (const ResponseItem& item : items) bytes += item.id.size() + item.json.size() + kItemOverhead;
  return bytes;
}

}  // namespace

std::vector<const Turn*> TurnsUpTo(const Turn* turn) {
  std::vector<const Turn*> turns;
  for (; turn != nullptr; turn = turn->previous.get()) turns.push_back(turn);
  std::reverse(turns.begin(), turns.end());
  return turns;
}

std::string StoredResponse::Json() const {
  std::string json = head;
  for (const ResponseItem& item : turn->output)
    json += base::StrCat(&item == &turn->output.front() ? "" : ",", item.json);
  return json + tail;
}

// Counts bytes while the object lives.
class ResponseStore::Charge {
 public:
  Charge(Bytes all, Bytes owner, std::size_t bytes) : all_(std::move(all)), owner_(std::move(owner)), bytes_(bytes) {
    *all_ += bytes_;
    *owner_ += bytes_;
  }
  ~Charge() {
    *all_ -= bytes_;
    *owner_ -= bytes_;
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

 private:
  const Bytes all_;
  const Bytes owner_;
  const std::size_t bytes_;
};

ResponseStore::~ResponseStore() = default;

bool ResponseStore::Add(const std::string& owner, StoredResponse response, Turn turn) {
  if (!keeps_any()) return false;
  const std::size_t turn_bytes = BytesOf(turn.input) + BytesOf(turn.output);
  const std::size_t own_bytes = kResponseOverhead + response.id.size() + response.head.size() + response.tail.size();
  turn.total_bytes = turn_bytes;
  if (turn.previous != nullptr) {
    turn.total_bytes += turn.previous->total_bytes;
    turn.num_turns = turn.previous->num_turns + 1;
  }
  if (turn.total_bytes + own_bytes > max_bytes_of(owner)) return false;
  base::MutexLock lock(mutex_);
  DropExpired();
  const auto of = owners_.try_emplace(owner).first;
  // A request in progress may hold a removed turn, whose bytes count until the request ends. So removing all responses
  // may not free enough bytes.
  const std::size_t more = turn_bytes + own_bytes;
  while (*of->second.bytes + more > max_bytes_of(owner) && !of->second.by_age.empty())
    Remove(of->second.by_age.front());
  if (*of->second.bytes + more > max_bytes_of(owner)) return false;
  turn.charge = std::make_shared<Charge>(bytes_, of->second.bytes, turn_bytes);
  response.charge = std::make_shared<Charge>(bytes_, of->second.bytes, own_bytes);
  response.turn = std::make_shared<const Turn>(std::move(turn));
  const std::string id = response.id;
  entries_.push_back({.response = std::make_shared<const StoredResponse>(std::move(response)),
                      .expires = clock_.Monotonic() + options_.ttl,
                      .owner = of,
                      .in_owner = {}});
  const auto entry = std::prev(entries_.end());
  entry->in_owner = of->second.by_age.insert(of->second.by_age.end(), entry);
  by_id_[id] = entry;
  Evict(of);
  DropOwners();
  return true;
}

void ResponseStore::Evict(Owners::iterator newest) {
  while (*bytes_ > options_.max_bytes && entries_.size() > 1) {
    auto largest = owners_.end();
    for (auto it = owners_.begin(); it != owners_.end(); ++it) {
      if (it->second.by_age.size() <= (it == newest ? 1u : 0u)) continue;
      if (largest == owners_.end() || *it->second.bytes > *largest->second.bytes) largest = it;
    }
    Remove(largest->second.by_age.front());
  }
}

void ResponseStore::Remove(Entries::iterator entry) {
  const auto owner = entry->owner;
  owner->second.by_age.erase(entry->in_owner);
  by_id_.erase(entry->response->id);
  entries_.erase(entry);
}

void ResponseStore::DropOwners() {
  std::erase_if(owners_, [](const auto& owner) { return owner.second.by_age.empty() && *owner.second.bytes == 0; });
}

void ResponseStore::DropExpired() {
  const absl::Duration now = clock_.Monotonic();
  while (!entries_.empty() && entries_.front().expires <= now) Remove(entries_.begin());
}

std::shared_ptr<const StoredResponse> ResponseStore::Find(const std::string& owner, const std::string& id) {
  base::MutexLock lock(mutex_);
  DropExpired();
  const auto it = by_id_.find(id);
  return it == by_id_.end() || it->second->owner->first != owner ? nullptr : it->second->response;
}

bool ResponseStore::Erase(const std::string& owner, const std::string& id) {
  base::MutexLock lock(mutex_);
  DropExpired();
  const auto it = by_id_.find(id);
  if (it == by_id_.end() || it->second->owner->first != owner) return false;
  Remove(it->second);
  return true;
}

ResponseStore::Level ResponseStore::Now() {
  base::MutexLock lock(mutex_);
  DropExpired();
  return {.responses = entries_.size(), .bytes = *bytes_};
}

}  // namespace nibble::openai
