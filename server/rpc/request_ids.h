// Finds running requests by their id, for Abort.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "server/auth/request_owner.h"
#include "server/base/cancel_token.h"
#include "server/base/mutex.h"

namespace nibble::rpc {

// Several requests of one owner may share an id; Abort ends them together. Thread-safe.
class RequestIds {
  struct Running {
    auth::RequestOwner whose;
    base::CancelToken cancel;
    std::function<void()> on_abort;
  };

 public:
  // Registers one request for the lifetime of the entry.
  class Entry {
   public:
    Entry(RequestIds& owner, const std::string& id, auth::RequestOwner whose, base::CancelToken cancel);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

    // For waits that do not poll the token: the next Abort cancels the token and then calls `callback`, once. An
    // earlier Abort does not call it, so check the token afterwards. The callback must not own the entry, but may
    // destroy it.
    void OnAbort(std::function<void()> callback);

   private:
    RequestIds& owner_;
    std::multimap<std::string, Running>::iterator at_;
  };

  // Aborts the caller's requests with this id; for an admin without a tenant, the requests of all callers with this id.
  // Returns false if there is no such request.
  bool Abort(const auth::Principal& caller, const std::string& id);

 private:
  base::Mutex mutex_;
  std::multimap<std::string, Running> running_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::rpc
