// The open connections of a listener, and which of them makes room for a new one.
#pragma once
#include <boost/asio/ip/address.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <utility>

namespace nibble::http {

// A connection of whatever protocol.
class Connection {
 public:
  virtual ~Connection() = default;
  // Closes the connection at once and gives its place back. The object may live on until its last operation has ended.
  virtual void Close() = 0;
};

// At most `max` connections, in the order in which their present exchanges began. An exchange is the wait for a request, the request while
// it is sent and its answer is made, or the answer while it is read. One thread.
class ConnectionTable {
  struct Entry {
    Connection* connection;
    boost::asio::ip::address peer;
    std::chrono::steady_clock::time_point since;  // begin of the exchange
    bool awaits_answer = false;                   // the answer is being made
  };
  using Entries = std::list<Entry>;  // longest exchange first

 public:
  // A connection's place, given back on destruction. The table outlives it.
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
    // The next exchange begins.
    void Renew();
    // The request is whole, and its answer is being made, until Renew().
    void AwaitAnswer();
    bool awaits_answer() const { return table_ != nullptr && entry_->awaits_answer; }

   private:
    friend class ConnectionTable;
    Place(ConnectionTable* table, Entries::iterator entry) : table_(table), entry_(entry) {}
    ConnectionTable* table_ = nullptr;
    Entries::iterator entry_;
  };

  // on_free is called whenever a place has been given back.
  explicit ConnectionTable(std::size_t max, std::function<void()> on_free = [] {}) : max_(max), on_free_(std::move(on_free)) {}
  ConnectionTable(const ConnectionTable&) = delete;
  ConnectionTable& operator=(const ConnectionTable&) = delete;

  bool full() const { return entries_.size() >= max_; }
  std::size_t size() const { return entries_.size(); }
  // Adds a connection from `peer`, above the maximum too: CloseOne() goes before it.
  Place Add(Connection& connection, const boost::asio::ip::address& peer);
  // Closes, of the peer with the most connections, the one whose exchange has lasted longest. As long as no more than half of the
  // connections await their answers, closes none of those: the server is slow then, not the client. False: the table is empty.
  bool CloseOne();
  // When the exchange of the connection that CloseOne() would close began. The table has one at least.
  std::chrono::steady_clock::time_point ExchangeToCloseBegan() const { return Victim()->since; }

 private:
  Entries::const_iterator Victim() const;
  void SetAwaiting(Entry& entry, bool awaits);

  const std::size_t max_;
  const std::function<void()> on_free_;
  Entries entries_;
  std::map<boost::asio::ip::address, std::size_t> per_peer_;
  std::size_t num_awaiting_ = 0;
};

}  // namespace nibble::http
