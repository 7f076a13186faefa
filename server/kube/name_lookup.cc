#include "server/kube/name_lookup.h"

#include <netdb.h>

#include <boost/asio/post.hpp>
#include <cstring>
#include <thread>
#include <utility>

#include "server/base/mutex.h"
#include "server/base/strings.h"

namespace nibble::kube {

namespace {

namespace asio = boost::asio;

absl::StatusOr<Endpoints> LookUp(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); code != 0) {
    return absl::UnavailableError(base::StrCat("cannot look up the host ", host, ": ", ::gai_strerror(code)));
  }
  Endpoints endpoints;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    asio::ip::tcp::endpoint endpoint;
    if (entry->ai_addrlen > endpoint.capacity()) continue;
    endpoint.resize(entry->ai_addrlen);
    std::memcpy(endpoint.data(), entry->ai_addr, entry->ai_addrlen);
    endpoints.push_back(endpoint);
  }
  ::freeaddrinfo(found);
  return endpoints;
}

}  // namespace

struct NameLookup::State {
  base::Mutex mutex;
  asio::io_context* io ABSL_GUARDED_BY(mutex) = nullptr;  // null: the NameLookup is gone
  absl::StatusOr<Endpoints> result ABSL_GUARDED_BY(mutex) = absl::UnavailableError("the host's look-up is not done");
  std::function<void()> on_done;  // of the io_context's thread; null: the NameLookup is gone
};

NameLookup::NameLookup(asio::io_context& io, const std::string& host, const std::string& port,
                       std::function<void()> on_done)
    : state_(std::make_shared<State>()) {
  state_->on_done = std::move(on_done);
  {
    base::MutexLock lock(state_->mutex);
    state_->io = &io;
  }
  std::thread([state = state_, host, port] {
    auto result = LookUp(host, port);
    base::MutexLock lock(state->mutex);
    state->result = std::move(result);
    if (state->io == nullptr) return;
    asio::post(*state->io, [state] {
      if (state->on_done) state->on_done();
    });
  }).detach();
}

NameLookup::~NameLookup() {
  state_->on_done = nullptr;
  base::MutexLock lock(state_->mutex);
  state_->io = nullptr;
}

absl::StatusOr<Endpoints> NameLookup::Result() const {
  base::MutexLock lock(state_->mutex);
  return state_->result;
}

}  // namespace nibble::kube
