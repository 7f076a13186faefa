#include "server/serve/waiting_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace nibble::serve {

void WaitingQueue::Push(WaitingEntry entry) {
  Level& level = levels_[entry.priority];
  places_[entry.id] = {entry.principal, entry.priority};
  const auto same = [&](const Turn& turn) { return turn.principal == entry.principal; };
  auto turn = std::find_if(level.round.begin(), level.round.end(), same);
  if (turn == level.round.end()) turn = level.round.insert(level.round.end(), Turn{entry.principal, {}});
  turn->entries.push_back(std::move(entry));
}

const WaitingEntry* WaitingQueue::Next(absl::Duration now, const May& may) const {
  const WaitingEntry* next = nullptr;
  double highest = 0;
  for (const auto& [priority, level] : levels_) {
    const auto turn =
        std::find_if(level.round.begin(), level.round.end(), [&](const Turn& one) { return may(one.entries.front()); });
    if (turn == level.round.end()) continue;
    const WaitingEntry& first = turn->entries.front();
    const double aged = priority + absl::FDivDuration(now - std::max(first.came, level.served), kAgeing);
    if (next != nullptr && aged <= highest) continue;  // if equal, the higher priority wins
    next = &first;
    highest = aged;
  }
  return next;
}

std::list<WaitingQueue::Turn>::iterator WaitingQueue::Drop(Level& level, const std::string& principal,
                                                           std::uint64_t id) {
  const auto turn =
      std::find_if(level.round.begin(), level.round.end(), [&](const Turn& one) { return one.principal == principal; });
  std::erase_if(turn->entries, [&](const WaitingEntry& entry) { return entry.id == id; });
  if (!turn->entries.empty()) return turn;
  level.round.erase(turn);
  return level.round.end();
}

void WaitingQueue::Begin(std::uint64_t id, absl::Duration now) {
  const Place place = places_.extract(id).mapped();
  const auto level = levels_.find(place.priority);
  const auto turn = Drop(level->second, place.principal, id);
  if (turn != level->second.round.end())
    level->second.round.splice(level->second.round.end(), level->second.round, turn);
  level->second.served = now;
  if (level->second.round.empty()) levels_.erase(level);
}

void WaitingQueue::Remove(std::uint64_t id) {
  const Place place = places_.extract(id).mapped();
  const auto level = levels_.find(place.priority);
  Drop(level->second, place.principal, id);
  if (level->second.round.empty()) levels_.erase(level);
}

std::int64_t WaitingQueue::NumOf(const std::string& principal) const {
  std::int64_t count = 0;
  for (const auto& [priority, level] : levels_) {
    for (const Turn& turn : level.round) {
      if (turn.principal == principal) count += static_cast<std::int64_t>(turn.entries.size());
    }
  }
  return count;
}

std::int64_t WaitingQueue::NumBefore(const std::string& principal, int priority) const {
  std::size_t count = 0;
  for (const auto& [above, level] : levels_) {
    if (above < priority) break;
    std::size_t own = 0;
    for (const Turn& turn : level.round) own += turn.principal == principal ? turn.entries.size() : 0;
    for (const Turn& turn : level.round) {
      // Until the new request begins, each other principal of its priority has a turn in own + 1 rounds.
      const bool takes_turns = above == priority && turn.principal != principal;
      count += takes_turns ? std::min(turn.entries.size(), own + 1) : turn.entries.size();
    }
  }
  return static_cast<std::int64_t>(count);
}

}  // namespace nibble::serve
