#pragma once
#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <set>

#include "server/base/mutex.h"

namespace nibble::rpc {

// The calls under way that end by themselves (no watches): a server that drains waits for them, then cuts them. Thread-safe.
class LiveCalls {
 public:
  void Add(grpc::CallbackServerContext* context) {
    base::MutexLock lock(mutex_);
    contexts_.insert(context);
  }
  // Before the call is finished: its context is not touched afterwards.
  void Remove(grpc::CallbackServerContext* context) {
    base::MutexLock lock(mutex_);
    contexts_.erase(context);
  }
  std::size_t count() const {
    base::MutexLock lock(mutex_);
    return contexts_.size();
  }
  // As if every client had cancelled. gRPC calls OnCancel on threads of its own.
  void CancelAll() {
    base::MutexLock lock(mutex_);
    for (grpc::CallbackServerContext* context : contexts_) context->TryCancel();
  }

 private:
  mutable base::Mutex mutex_;
  std::set<grpc::CallbackServerContext*> contexts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::rpc
