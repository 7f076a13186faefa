#include "server/http/connection_table.h"

#include <algorithm>
#include <iterator>

namespace nibble::http {

namespace {

namespace ip = boost::asio::ip;

// An IPv6 /64 counts as one peer: one host may own all addresses of a /64.
ip::address PeerOf(const ip::address& address) {
  if (!address.is_v6()) return address;
  const ip::address_v6 v6 = address.to_v6();
  if (v6.is_v4_mapped()) return ip::make_address_v4(ip::v4_mapped, v6);
  ip::address_v6::bytes_type bytes = v6.to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), static_cast<unsigned char>(0));
  return ip::address_v6(bytes);
}

}  // namespace

void ConnectionTable::Place::Release() {
  if (table_ == nullptr) return;
  table_->SetAwaiting(*entry_, false);
  const auto count = table_->per_peer_.find(entry_->peer);
  if (--count->second == 0) table_->per_peer_.erase(count);
  table_->entries_.erase(entry_);
  std::exchange(table_, nullptr)->on_free_();
}

void ConnectionTable::Place::Renew() {
  if (table_ == nullptr) return;
  table_->SetAwaiting(*entry_, false);
  entry_->since = std::chrono::steady_clock::now();
  table_->entries_.splice(table_->entries_.end(), table_->entries_, entry_);
}

void ConnectionTable::Place::AwaitAnswer() {
  if (table_ != nullptr) table_->SetAwaiting(*entry_, true);
}

void ConnectionTable::SetAwaiting(Entry& entry, bool awaits) {
  if (entry.awaits_answer == awaits) return;
  entry.awaits_answer = awaits;
  awaits ? ++num_awaiting_ : --num_awaiting_;
}

ConnectionTable::Place ConnectionTable::Add(Connection& connection, const ip::address& peer) {
  entries_.push_back({&connection, PeerOf(peer), std::chrono::steady_clock::now()});
  ++per_peer_[entries_.back().peer];
  return Place(this, std::prev(entries_.end()));
}

ConnectionTable::Entries::const_iterator ConnectionTable::Victim() const {
  std::size_t most = 0;
  for (const auto& [peer, count] : per_peer_) most = std::max(most, count);
  const auto of_most = [&](const Entry& entry) { return per_peer_.at(entry.peer) == most; };
  if (when_full_ == WhenFull::kCloseIdle) {
    const auto idle = std::find_if(entries_.begin(), entries_.end(),
                                   [&](const Entry& entry) { return of_most(entry) && !entry.awaits_answer; });
    if (idle != entries_.end()) return idle;
    return std::find_if(entries_.begin(), entries_.end(), [](const Entry& entry) { return !entry.awaits_answer; });
  }
  if (num_awaiting_ <= max_ / 2) {
    const auto slow = std::find_if(entries_.begin(), entries_.end(),
                                   [&](const Entry& entry) { return of_most(entry) && !entry.awaits_answer; });
    if (slow != entries_.end()) return slow;
  }
  return std::find_if(entries_.begin(), entries_.end(), of_most);
}

bool ConnectionTable::CloseOne() {
  const auto victim = Victim();
  if (victim == entries_.end()) return false;
  victim->connection->Close();
  return true;
}

void ConnectionTable::CloseAll() {
  while (!entries_.empty()) entries_.front().connection->Close();
}

std::optional<std::chrono::steady_clock::time_point> ConnectionTable::ExchangeToCloseBegan() const {
  const auto victim = Victim();
  if (victim == entries_.end()) return std::nullopt;
  return victim->since;
}

}  // namespace nibble::http
