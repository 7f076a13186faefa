// The order in which waiting requests begin. Pure: whoever calls it has the clock.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <string>

#include "absl/time/time.h"

namespace nibble::serve {

struct WaitingEntry {
  std::uint64_t id = 0;       // ascending in the order of arrival
  std::string principal;      // "": of a server without tokens
  int priority = 0;           // higher begins first
  absl::Duration came;        // monotonic
};

// Of a priority, the principals take turns: each begins one request a round, its oldest. A principal whose requests come when the round
// is under way joins at its end. A priority that waits gains a level every kAgeing, until one of its requests begins: whatever comes
// above it, it is served in the end. Nothing overtakes the request that is next, so a large one is not passed over by small ones for
// which there is room. Thread-compatible.
class WaitingQueue {
 public:
  static constexpr absl::Duration kAgeing = absl::Milliseconds(100);
  // Whether a request may begin, as far as its principal's bounds go. Requests of one that is at its bounds hold up nobody.
  using May = std::function<bool(const WaitingEntry&)>;

  void Push(WaitingEntry entry);
  // The one that begins next; nullptr when none may. Valid until the queue changes.
  const WaitingEntry* Next(absl::Duration now, const May& may) const;
  // Removes what Next gave: its principal's turn is over.
  void Begin(std::uint64_t id, absl::Duration now);
  // Removes a request that ended while it waited; its principal keeps its turn.
  void Remove(std::uint64_t id);

  std::int64_t size() const { return static_cast<std::int64_t>(places_.size()); }
  std::int64_t NumOf(const std::string& principal) const;
  // How many requests would begin before a new one: those of higher priorities, and of its own those of the rounds until its turn.
  std::int64_t NumBefore(const std::string& principal, int priority) const;

 private:
  struct Turn {
    std::string principal;
    std::deque<WaitingEntry> entries;
  };
  struct Level {
    std::list<Turn> round;  // whose turn is next comes first
    absl::Duration served = -absl::InfiniteDuration();
  };
  struct Place {
    std::string principal;
    int priority;
  };

  // Drops the entry; the turn where it was, or the round's end where it has none left.
  std::list<Turn>::iterator Drop(Level& level, const std::string& principal, std::uint64_t id);

  std::map<int, Level, std::greater<>> levels_;  // by priority; each has a request
  std::map<std::uint64_t, Place> places_;
};

}  // namespace nibble::serve
