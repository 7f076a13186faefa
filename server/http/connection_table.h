// The open connections of a listener, and the choice of the one to close for a new one.
#pragma once
#include <boost/asio/ip/address.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <utility>

namespace nibble::http {

// A connection of any protocol.
class Connection {
 public:
  virtual ~Connection() = default;
  // Closes the connection at once and releases its place. The object may live until its last operation has ended.
  virtual void Close() = 0;
};

// At most `max` connections, ordered by the start of their current exchange. An exchange is one of these: the wait for
// a request; the receipt of a request and the work on its answer; the transmission of the answer. One thread.
class ConnectionTable {
  struct Entry {
    Connection* connection;
    boost::asio::ip::address peer;
    std::chrono::steady_clock::time_point since;  // start of the exchange
    bool awaits_answer = false;                   // the answer is not ready yet
  };
  using Entries = std::list<Entry>;  // longest exchange first

 public:
  // A connection's place, released on destruction. The table must outlive it.
  class Place {
   public:
    Place() = default;
    Place(Place&& from) noexcept : table_(std::exchange(from.table_, nullptr)), entry_(from.entry_) {}
    Place& operator=(Place&& from) noexcept {
      if (this != &from) Release();
      table_ = std::exchange(from.table_, nullptr);
      entry_ = from.entry_;
      return *this;
    }
    ~Place() { Release(); }
    void Release();
    // Starts the next exchange.
    void Renew();
    // The request is complete: the connection awaits its answer until Renew().
    void AwaitAnswer();
    bool awaits_answer() const { return table_ != nullptr && entry_->awaits_answer; }

   private:
    friend class ConnectionTable;
    Place(ConnectionTable* table, Entries::iterator entry) : table_(table), entry_(entry) {}
    ConnectionTable* table_ = nullptr;
    Entries::iterator entry_;
  };

  // The connections that CloseOne() may close.
  enum class WhenFull {
    kCloseAny,
    kCloseIdle,  // never one that awaits an answer
  };

  // Calls on_free each time a place is released.
  explicit ConnectionTable(
      std::size_t max, std::function<void()> on_free = [] {}, WhenFull when_full = WhenFull::kCloseAny)
      : max_(max), on_free_(std::move(on_free)), when_full_(when_full) {}
  ConnectionTable(const ConnectionTable&) = delete;
  ConnectionTable& operator=(const ConnectionTable&) = delete;

  bool full() const { return entries_.size() >= max_; }
  std::size_t size() const { return entries_.size(); }
  // Adds a connection from `peer`, even above the maximum: if full(), call CloseOne() first.
  Place Add(Connection& connection, const boost::asio::ip::address& peer);
  // Closes the connection whose exchange has lasted longest, among those of the peer with the most connections. While
  // at most max/2 connections await their answers, prefers one that does not await an answer: if an answer is late, the
  // server is slow, not the client. False: there is no connection that it may close.
  bool CloseOne();
  void CloseAll();
  // The start of the exchange of the connection that CloseOne() would close. nullopt: it would close none.
  std::optional<std::chrono::steady_clock::time_point> ExchangeToCloseBegan() const;

 private:
  Entries::const_iterator Victim() const;  // end(): no connection may be closed
  void SetAwaiting(Entry& entry, bool awaits);

  const std::size_t max_;
  const std::function<void()> on_free_;
  const WhenFull when_full_;
  Entries entries_;
  std::map<boost::asio::ip::address, std::size_t> per_peer_;
  std::size_t num_awaiting_ = 0;
};

}  // namespace nibble::http
