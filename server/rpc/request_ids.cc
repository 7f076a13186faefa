#include "server/rpc/request_ids.h"

#include <utility>
#include <vector>

namespace nibble::rpc {

RequestIds::Entry::Entry(RequestIds& owner, const std::string& id, auth::RequestOwner whose, base::CancelToken cancel)
    : owner_(owner) {
  base::MutexLock lock(owner_.mutex_);
  at_ = owner_.running_.emplace(id, Running{std::move(whose), std::move(cancel), {}});
}

RequestIds::Entry::~Entry() {
  base::MutexLock lock(owner_.mutex_);
  owner_.running_.erase(at_);
}

void RequestIds::Entry::OnAbort(std::function<void()> callback) {
  base::MutexLock lock(owner_.mutex_);
  at_->second.on_abort = std::move(callback);
}

bool RequestIds::Abort(const auth::Principal& caller, const std::string& id) {
  const bool all = auth::SeesAll(caller);
  const auth::RequestOwner own = auth::OwnerOf(caller);
  std::vector<std::function<void()>> callbacks;  // called after the lock is released: they may destroy entries
  bool found = false;
  {
    base::MutexLock lock(mutex_);
    const auto [begin, end] = running_.equal_range(id);
    for (auto it = begin; it != end; ++it) {
      if (!all && it->second.whose != own) continue;
      found = true;
      it->second.cancel.Cancel();
      if (it->second.on_abort) callbacks.push_back(std::exchange(it->second.on_abort, {}));
    }
  }
  for (const auto& callback : callbacks) callback();
  return found;
}

}  // namespace nibble::rpc
