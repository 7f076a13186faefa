#include "server/http/listener.h"

#include <boost/asio/ip/v6_only.hpp>
#include <exception>
#include <string>
#include <utility>

#include "server/base/log.h"

namespace nibble::http {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr std::chrono::milliseconds kPause(100);  // without file descriptors or memory, until others free some
constexpr std::chrono::minutes kWarnEvery(1);
// Time that a client on a busy machine may need to send its request after its connection is accepted. Meanwhile a burst
// of connections waits in the kernel's queue and is accepted at a rate of max_connections per kGrace.
constexpr std::chrono::milliseconds kGrace(5);

// Whether the next accept() would fail in the same way. Other errors concern only the connection that was to be
// accepted.
bool IsShortage(const boost::system::error_code& error) {
  return error == asio::error::no_descriptors || error == boost::system::errc::too_many_files_open_in_system ||
         error == asio::error::no_buffer_space || error == asio::error::no_memory;
}

}  // namespace

Listener::Listener(asio::io_context& io, ConnectionTable& table, SpareFiles& spare, Serve serve)
    : table_(table), spare_(spare), serve_(std::move(serve)), acceptor_(io), pause_(io) {}

absl::Status Listener::Listen(const HostPort& address) {
  Error error;
  tcp::resolver resolver(acceptor_.get_executor());
  const auto found = resolver.resolve(address.host, std::to_string(address.port), tcp::resolver::passive, error);
  for (const auto& entry : found) {
    error = Bind(entry.endpoint());
    if (!error) return absl::OkStatus();
  }
  return absl::UnavailableError(error ? error.message() : "the host has no address");
}

Listener::Error Listener::Bind(const tcp::endpoint& endpoint) {
  Error error;
  acceptor_.close(error);
  acceptor_.open(endpoint.protocol(), error);
  if (error) return error;
  // No SO_REUSEPORT: two servers would share the port's clients. [::] serves IPv4 too.
  acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error && endpoint.address().is_v6()) acceptor_.set_option(asio::ip::v6_only(false), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (!error) acceptor_.non_blocking(true, error);
  return error;
}

int Listener::port() const {
  Error ignored;
  return acceptor_.local_endpoint(ignored).port();
}

// Not async_accept(): it calls accept() even while no connection waits, which fails if the process has no file
// descriptor left.
void Listener::Accept() {
  acceptor_.async_wait(tcp::acceptor::wait_read, [this](Error error) {
    if (error) return;  // the listener is being destroyed
    if (table_.full()) {
      const auto began = table_.ExchangeToCloseBegan();
      if (!began.has_value()) {  // the client waits in the kernel's queue
        WarnFull();
        return AcceptAfter(kPause);
      }
      const auto left = *began + kGrace - std::chrono::steady_clock::now();
      if (left > left.zero()) return AcceptAfter(left);
    }
    tcp::socket socket = acceptor_.accept(error);
    OnAccept(error, std::move(socket));
  });
}

void Listener::AcceptAfter(std::chrono::steady_clock::duration pause) {
  pause_.expires_after(pause);
  pause_.async_wait([this](Error cancelled) {
    if (!cancelled) Accept();
  });
}

void Listener::OnAccept(Error error, tcp::socket socket) {
  // In a shortage, frees a descriptor for the next accept(), or pauses if there is none to free.
  if (IsShortage(error) && !spare_.Release() && !table_.CloseOne()) {
    return AcceptAfter(kPause);
  }
  if (!error) {
    try {
      if (table_.full()) {
        WarnFull();
        table_.CloseOne();
      }
      serve_(std::move(socket));
    } catch (const std::exception& failed) {  // out of memory: only this connection is lost
      base::LogError("cannot serve an HTTP connection", {{"why", failed.what()}});
    }
  }
  Accept();
}

void Listener::Stop() {
  Error ignored;
  acceptor_.close(ignored);
  pause_.cancel();
}

void Listener::WarnFull() {
  const auto now = std::chrono::steady_clock::now();
  if (warned_.has_value() && now - *warned_ < kWarnEvery) return;
  warned_ = now;
  base::LogWarning("all HTTP connections are in use: new ones replace old ones or wait",
                   {{"connections", table_.size()}});
}

}  // namespace nibble::http
