// Unary RPCs: the only place that calls Finish() for them. Call::End times, counts and logs them, and maps errors.
#pragma once
#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "server/auth/request_owner.h"
#include "server/base/error.h"
#include "server/base/mutex.h"
#include "server/base/queue_full.h"
#include "server/base/strings.h"
#include "server/rpc/call.h"
#include "server/rpc/on_worker.h"
#include "server/rpc/status.h"

namespace nibble::rpc {

// A call that may end later, on another thread. Owned by gRPC; destroyed after Done().
class UnaryCall : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(CallEnvironment& environment, grpc::CallbackServerContext* context, const char* method)
      : call_(environment, context, CallType::kUnary, method) {}

  const Call& call() const { return call_; }
  // Call this once, from any thread. The object must not be used afterwards.
  void Done(const absl::Status& status) { Finish(call_.End(status)); }
  // Calls `callback` once when the client cancels, its deadline passes or the server stops; at once if one of these
  // has already happened.
  void OnCancelled(std::function<void()> callback) {
    {
      base::MutexLock lock(mutex_);
      if (!call_.cancel().cancelled()) {
        on_cancel_ = std::move(callback);
        return;
      }
    }
    callback();
  }

 private:
  void OnCancel() override {
    std::function<void()> callback;
    {
      base::MutexLock lock(mutex_);
      call_.Cancel();
      callback.swap(on_cancel_);
    }
    if (callback) callback();
  }
  void OnDone() override { delete this; }

  Call call_;
  base::Mutex mutex_;
  std::function<void()> on_cancel_ ABSL_GUARDED_BY(mutex_);
};

// Answers on gRPC's own thread, so `body` must not block. It takes the Call, or nothing.
template <typename Body>
grpc::ServerUnaryReactor* Unary(CallEnvironment& environment, grpc::CallbackServerContext* context, const char* method,
                                Body body) {
  auto* call = new UnaryCall(environment, context, method);
  const auto answer = [&]() -> absl::Status {
    if constexpr (std::is_invocable_v<Body, const Call&>) {
      return body(call->call());
    } else {
      return body();
    }
  };
  call->Done(call->call().admitted().ok() ? answer() : call->call().admitted());
  return call;
}

// Runs `start(call)` on one of `workers`; `start`, or work that it starts, must call Done once. The call fails if it
// has not begun by the client's deadline or, without one, after `patience`.
template <typename Start>
grpc::ServerUnaryReactor* UnaryAsync(CallEnvironment& environment, base::WorkerPool& workers,
                                     grpc::CallbackServerContext* context, const char* method, Start start,
                                     absl::Duration patience) {
  auto* call = new UnaryCall(environment, context, method);
  if (!call->call().admitted().ok()) {
    call->Done(call->call().admitted());
    return call;
  }
  const std::string principal = auth::FairnessKey(call->call().principal());
  const bool taken = workers.TryRun(
      [&environment, &workers, call, patience, start = std::move(start)]() mutable {
        workers.NoteWait(environment.clock.Monotonic() - call->call().began());
        if (const absl::Status wanted = call->call().StillWanted(call->call().DeadlineOr(patience)); !wanted.ok()) {
          call->Done(wanted);
        } else {
          start(call);
        }
      },
      principal);
  if (!taken) call->Done(base::TooManyWait(workers, principal));
  return call;
}

// Answers with the absl::Status that `body` returns. If `body` may take long, `workers` must be separate from those of
// other calls.
template <typename Body>
grpc::ServerUnaryReactor* UnaryOnSlowWorker(CallEnvironment& environment, base::WorkerPool& workers,
                                            grpc::CallbackServerContext* context, const char* method, Body body,
                                            absl::Duration patience) {
  return UnaryAsync(
      environment, workers, context, method,
      [body = std::move(body)](UnaryCall* call) mutable { call->Done(body(call->call())); }, patience);
}

// Runs `body` on environment.workers, which most calls share. `body` may wait for the disk.
template <typename Body>
grpc::ServerUnaryReactor* UnaryOnWorker(CallEnvironment& environment, grpc::CallbackServerContext* context,
                                        const char* method, Body body) {
  return UnaryOnSlowWorker(environment, environment.workers, context, method, std::move(body),
                           environment.default_deadline);
}

inline grpc::ServerUnaryReactor* UnaryUnimplemented(CallEnvironment& environment, grpc::CallbackServerContext* context,
                                                    const char* method) {
  return Unary(environment, context, method, [method] { return Unimplemented(method); });
}

}  // namespace nibble::rpc
