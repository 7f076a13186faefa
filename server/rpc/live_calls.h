#pragma once
#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <set>

#include "server/base/mutex.h"

namespace nibble::rpc {

// The calls in progress that end by themselves, so no watches and no trainer reports. A draining server waits for these
// calls, then cancels them. Thread-safe.
class LiveCalls {
 public:
  void Add(grpc::CallbackServerContext* context) {
    base::MutexLock lock(mutex_);
    contexts_.insert(context);
  }
  // Must be called before the call is finished. The context is not used afterwards.
  void Remove(grpc::CallbackServerContext* context) {
    base::MutexLock lock(mutex_);
    contexts_.erase(context);
  }
  std::size_t count() const {
    base::MutexLock lock(mutex_);
    return contexts_.size();
  }
  // Acts as if every client had cancelled. gRPC calls OnCancel on its own threads.
  void CancelAll() {
    base::MutexLock lock(mutex_);
    for (grpc::CallbackServerContext* context : contexts_) context->TryCancel();
  }

 private:
  mutable base::Mutex mutex_;
  std::set<grpc::CallbackServerContext*> contexts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::rpc
