#include "server/rpc/request_ids.h"

namespace nibble::rpc {

RequestIds::Entry::Entry(RequestIds& owner, const std::string& id, base::CancelToken cancel) : owner_(owner) {
  base::MutexLock lock(owner_.mutex_);
  at_ = owner_.running_.emplace(id, std::move(cancel));
}

RequestIds::Entry::~Entry() {
  base::MutexLock lock(owner_.mutex_);
  owner_.running_.erase(at_);
}

bool RequestIds::Abort(const std::string& id) {
  base::MutexLock lock(mutex_);
  const auto [begin, end] = running_.equal_range(id);
  for (auto it = begin; it != end; ++it) it->second.Cancel();
  return begin != end;
}

}  // namespace nibble::rpc
