// Which requests run under which id, so that Abort finds them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "server/base/cancel_token.h"
#include "server/base/mutex.h"

namespace nibble::rpc {

// Several requests may share an id: they are ended together. Thread-safe.
class RequestIds {
 public:
  // One request, until it is dropped.
  class Entry {
   public:
    Entry(RequestIds& owner, const std::string& id, base::CancelToken cancel);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    RequestIds& owner_;
    std::multimap<std::string, base::CancelToken>::iterator at_;
  };

  // False when none runs under that id.
  bool Abort(const std::string& id);

 private:
  base::Mutex mutex_;
  std::multimap<std::string, base::CancelToken> running_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::rpc
