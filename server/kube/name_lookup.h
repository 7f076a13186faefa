// Private to api_client.cc.
#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::kube {

using Endpoints = std::vector<boost::asio::ip::tcp::endpoint>;

// Looks up the addresses of a host name. getaddrinfo can neither be cancelled nor be given a deadline, so it runs on a
// detached thread, which ends by itself after the NameLookup is gone. One thread: that of the io_context.
class NameLookup {
 public:
  // Calls `on_done` on the io_context's thread, unless destroyed first. Throws if no thread can be made.
  NameLookup(boost::asio::io_context& io, const std::string& host, const std::string& port,
             std::function<void()> on_done);
  ~NameLookup();
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;

  // Unavailable: the look-up failed, or is not done.
  absl::StatusOr<Endpoints> Result() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace nibble::kube
