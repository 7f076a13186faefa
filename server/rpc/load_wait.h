// How a call waits for a model that is not in memory.
#pragma once
#include <grpcpp/alarm.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/auth/request_owner.h"
#include "server/base/clock.h"
#include "server/base/mutex.h"
#include "server/rpc/unary.h"
#include "server/serve/model_loads.h"

namespace nibble::rpc {

// One waiting call. The load, a cancel or its deadline ends the wait, whichever comes first. Thread-safe.
class LoadWait : public std::enable_shared_from_this<LoadWait> {
 public:
  using Watch = std::function<void(const std::shared_ptr<LoadWait>&)>;

  // `then` is called once, in Begin at the earliest. If a cancel or the deadline ended the wait, it gets Cancelled or
  // DeadlineExceeded with stage QUEUE.
  LoadWait(serve::ModelLoads& loads, std::string name, const Call& call, absl::Duration deadline,
           serve::ModelLoads::Then then)
      : loads_(loads),
        name_(std::move(name)),
        principal_(auth::FairnessKey(call.principal())),
        clock_(call.environment().clock),
        deadline_(deadline),
        cancel_(call.cancel()),
        then_(std::move(then)) {}

  // `watch` must arrange that a cancel calls Cancelled(). `then` may end the call, so it is called only after `watch`
  // returns.
  void Begin(const Watch& watch);
  void Cancelled();  // the transport calls this for a passed deadline too

 private:
  void End(serve::ModelLoads::Loaded loaded);

  serve::ModelLoads& loads_;
  const std::string name_;
  const std::string principal_;
  base::Clock& clock_;
  const absl::Duration deadline_;  // monotonic
  const base::CancelToken cancel_;
  base::Mutex mutex_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;  // set up; from now on a result ends the wait
  std::optional<serve::ModelLoads::Loaded> early_ ABSL_GUARDED_BY(mutex_);  // the first result before begun_
  std::uint64_t waiter_ ABSL_GUARDED_BY(mutex_) = 0;
  serve::ModelLoads::Then then_ ABSL_GUARDED_BY(mutex_);  // empty: the wait has ended
  grpc::Alarm timer_;
};

// Calls `then` with the model: at once if it is in memory, otherwise after the load, or with the error that ended the
// wait.
template <typename Watch, typename Then>
void WithModel(serve::ModelLoads& loads, const std::string& name, const Call& call, absl::Duration deadline,
               const Watch& watch, Then then) {
  if (auto resident = loads.Find(name); resident != nullptr)
    return then(serve::ModelLoads::Loaded(std::move(resident)));
  std::make_shared<LoadWait>(loads, name, call, deadline, std::move(then))->Begin(watch);
}

template <typename Then>
void WithModel(serve::ModelLoads& loads, const std::string& name, UnaryCall* call, absl::Duration deadline, Then then) {
  const auto watch = [call](const std::shared_ptr<LoadWait>& wait) {
    call->OnCancelled([wait] { wait->Cancelled(); });
  };
  WithModel(loads, name, call->call(), deadline, watch, std::move(then));
}

}  // namespace nibble::rpc
