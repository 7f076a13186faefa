// Limits what the requests of a listener hold while the server waits for their clients.
#pragma once
#include <chrono>
#include <cstddef>
#include <map>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "server/http/connection_table.h"

namespace nibble::http {

// Limits bytes, or places, of all requests together. A principal may hold half. The principal "" (all clients of a
// server without tokens) may hold everything. If a request needs more, the budget closes connections that keep the
// server waiting: of the principal that holds most, or of the request's own principal if its half is used up. It begins
// with the largest product of amount and waiting time. A principal's only request always fits. One thread.
class ClientBudget {
 public:
  // The amount that one request holds. The budget and the connection must outlive it.
  class Share {
   public:
    Share(ClientBudget& budget, Connection& connection) : budget_(budget), connection_(connection) {}
    ~Share() { Release(); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Changes the amount. `principal`: RequestHead::fairness_key, the same until Release(). False: the amount does not
    // fit and is unchanged.
    bool Hold(const std::string& principal, std::size_t amount);
    // The server waits for the client from now on, until EndWait(): the budget may close the connection.
    void AwaitClient();
    void EndWait() { budget_.waiting_.erase(this); }
    void Release();

   private:
    friend class ClientBudget;
    ClientBudget& budget_;
    Connection& connection_;
    std::string principal_;
    std::size_t amount_ = 0;
    std::chrono::steady_clock::time_point waits_since_;
  };

  // Closes no connection whose client has kept the server waiting for less than `patience`.
  explicit ClientBudget(std::size_t max, absl::Duration patience = absl::ZeroDuration())
      : max_(max), patience_(absl::ToChronoNanoseconds(patience)) {}
  std::size_t held() const { return held_; }
  ClientBudget(const ClientBudget&) = delete;
  ClientBudget& operator=(const ClientBudget&) = delete;

 private:
  void Add(Share& share, std::size_t amount);
  void Subtract(Share& share, std::size_t amount);
  // Closes connections, but not that of `share`, until its principal may hold `more`. False: it may not.
  bool MakeRoom(const Share& share, const std::string& principal, std::size_t more);
  std::size_t HeldBy(const std::string& principal) const;
  // Of the shares that may be closed, but not `except`: the costliest of this principal, or, with nullptr, of the
  // principal that holds most.
  Share* Costliest(const std::string* principal, const Share& except) const;

  const std::size_t max_;
  const std::chrono::nanoseconds patience_;
  std::size_t held_ = 0;
  std::map<std::string, std::size_t> held_by_;  // by principal; no value is 0
  std::set<Share*> waiting_;                    // shares whose clients keep the server waiting
};

}  // namespace nibble::http
