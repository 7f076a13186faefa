// Which requests run under which id, so that Abort finds them.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "server/base/cancel_token.h"
#include "server/base/mutex.h"
#include "server/rpc/request_owner.h"

namespace nibble::rpc {

// Several requests of one owner may share an id: they are ended together. Thread-safe.
class RequestIds {
  struct Running {
    RequestOwner whose;
    base::CancelToken cancel;
    std::function<void()> on_abort;
  };

 public:
  // One request, until it is dropped.
  class Entry {
   public:
    Entry(RequestIds& owner, const std::string& id, RequestOwner whose, base::CancelToken cancel);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

    // Called at most once, after the token was cancelled, by an abort that comes from now on: for what waits and does not ask the
    // token. It must not hold the entry, and may drop it.
    void OnAbort(std::function<void()> callback);

   private:
    RequestIds& owner_;
    std::multimap<std::string, Running>::iterator at_;
  };

  // The caller's own requests of that id; those of all callers where it is an admin without a tenant. False when there are none.
  bool Abort(const Principal& caller, const std::string& id);

 private:
  base::Mutex mutex_;
  std::multimap<std::string, Running> running_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::rpc
