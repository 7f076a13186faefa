// The order in which waiting requests begin. Pure: the caller passes the time.
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
  std::uint64_t id = 0;   // ascending in the order of arrival
  std::string principal;  // "": the server has no access tokens
  int priority = 0;       // higher begins first
  absl::Duration came;    // monotonic
};

// Principals of one priority take turns: in each round, each begins its oldest request. A principal whose requests
// arrive during a round joins at its end. All waiting requests of a priority count as one priority higher for every
// kAgeing in which none of them began, so they are served eventually, whatever arrives with higher priority. Nothing
// overtakes the next request, so small requests that fit do not pass a large one that does not fit yet.
// Thread-compatible.
class WaitingQueue {
 public:
  static constexpr absl::Duration kAgeing = absl::Milliseconds(100);
  // Whether a request may begin under its principal's limits. Requests of a principal at its limits do not hold up
  // others.
  using May = std::function<bool(const WaitingEntry&)>;

  void Push(WaitingEntry entry);
  // The request that begins next; nullptr when none may. Valid until the queue changes.
  const WaitingEntry* Next(absl::Duration now, const May& may) const;
  // Removes the request that Next returned, and ends its principal's turn.
  void Begin(std::uint64_t id, absl::Duration now);
  // Removes a request that ended while it waited; its principal keeps its turn.
  void Remove(std::uint64_t id);

  std::int64_t size() const { return static_cast<std::int64_t>(places_.size()); }
  std::int64_t NumOf(const std::string& principal) const;
  // Number of requests that would begin before a new one: all of higher priority, and those of its own priority in the
  // rounds until its turn.
  std::int64_t NumBefore(const std::string& principal, int priority) const;

 private:
  struct Turn {
    std::string principal;
    std::deque<WaitingEntry> entries;
  };
  struct Level {
    std::list<Turn> round;                              // the next turn comes first
    absl::Duration served = -absl::InfiniteDuration();  // when one of its requests last began; -infinite: never
  };
  struct Place {
    std::string principal;
    int priority;
  };

  // Drops the entry. Returns its turn, or the end of the round if the turn has no entries left.
  std::list<Turn>::iterator Drop(Level& level, const std::string& principal, std::uint64_t id);

  std::map<int, Level, std::greater<>> levels_;  // by priority; none is empty
  std::map<std::uint64_t, Place> places_;
};

}  // namespace nibble::serve
