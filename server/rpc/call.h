// Common parts of every RPC: request id, metrics, log line, deadline, authorization and the mapping of errors.
#pragma once
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/auth/principals.h"
#include "server/base/cancel_token.h"
#include "server/base/cancelled.h"
#include "server/base/clock.h"
#include "server/base/ids.h"
#include "server/base/mutex.h"
#include "server/base/stream_slots.h"
#include "server/base/worker_pool.h"
#include "server/rpc/live_calls.h"
#include "server/telemetry/metrics.h"

namespace nibble::auth {
class Authority;
}

namespace nibble::rpc {

// Service of KServe's protocol (server/kserve), whose calls count as requests of that protocol.
inline constexpr char kKServeService[] = "inference.GRPCInferenceService";

// Callbacks that run when the server begins to drain. Thread-safe.
class DrainList {
 public:
  using Callback = std::function<void()>;
  // Returns an id for Remove(). If the drain has already begun, calls `callback` at once and returns 0.
  std::uint64_t Add(Callback callback);
  void Remove(std::uint64_t id);  // a callback that Fire() has already taken still runs
  void Fire();

 private:
  base::Mutex mutex_;
  std::uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  bool fired_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::uint64_t, Callback> callbacks_ ABSL_GUARDED_BY(mutex_);
};

// State that the services share. Outlives them.
struct CallEnvironment {
  CallEnvironment(telemetry::Metrics& metrics_in, base::WorkerPool& workers_in, base::Clock& clock_in,
                  std::atomic<bool>& draining_in)
      : metrics(metrics_in), workers(workers_in), clock(clock_in), draining(draining_in) {}

  telemetry::Metrics& metrics;
  base::WorkerPool& workers;
  base::Clock& clock;
  std::atomic<bool>& draining;
  DrainList drain;
  LiveCalls live_calls;
  auth::Authority* authority = nullptr;                         // nullptr: every call is allowed
  std::atomic<int> live_answers{0};                             // requests that an engine may still call back about
  absl::Duration default_deadline = absl::Seconds(30);          // longest wait for a worker, of calls without deadline
  std::size_t stream_buffer = 256;                              // maximum number of messages buffered for a slow reader
  absl::Duration generate_deadline = absl::InfiniteDuration();  // of a Generate, Chat or Score without client deadline
  absl::Duration slow_reader = absl::Seconds(30);  // window over which a slow reader must reach min_read_rate
  double min_read_rate = 1;                        // messages per second
  absl::Duration last_read = absl::Seconds(10);    // an aborted stream whose status is not read by then is cut
  absl::Duration max_stream_age = absl::Hours(1);  // of an upload
  std::int64_t max_stream_messages = 10'000;       // of an upload; counts only those below half of max_chunk_bytes
  std::size_t max_chunk_bytes = 1u << 20;
  static constexpr std::size_t kMaxPageBytes = 2u << 20;  // half of the 4 MiB that a gRPC client accepts by default
  std::size_t max_page_bytes = kMaxPageBytes;             // of a page of a list
  std::size_t max_dataset_line_bytes = 1u << 20;
  std::size_t max_prompt_bytes = 1u << 20;  // of a text that a call encodes
  std::size_t max_send_bytes = 16u << 20;   // of an answer, the limit of gRPC; checked before the work starts
  base::StreamSlots watches{"--max_watches", 256, "--max_watches_per_principal", 64};  // of all Watch methods
  base::StreamSlots downloads{"--max_downloads", 16, "--max_downloads_per_principal", 8};
  // PlanJob plans, running and waiting. Limited per principal only: the operations lane of plans has its own limit.
  base::StreamSlots plans{"", std::numeric_limits<int>::max(), "--max_plans_per_principal", 8, "QUEUE_FULL"};
  // The pools are the last members because their tasks use the others.
  // Serves watches only, so that watches that wake together do not delay other calls.
  base::WorkerPool watch_workers{/*num_threads=*/2, /*max_waiting=*/256};
  // Encodes large texts only, one at a time.
  base::WorkerPool text_workers{/*num_threads=*/1, /*max_waiting=*/64};
};

enum class CallType { kUnary, kClientStream, kServerStream, kBidiStream };

// One RPC from beginning to end. Thread-compatible; Cancel() and the token may be used from any thread.
class Call {
 public:
  // `method`: a string constant such as "nibble.v1.ModelService/GetModel". `for_trainers`: the call arrived on a
  // listener for trainers only, which matters where AuthProcessor does not mark its connections.
  Call(CallEnvironment& environment, grpc::CallbackServerContext* context, CallType type, const char* method,
       bool for_trainers = false);

  CallEnvironment& environment() const { return environment_; }
  // Not OK: the caller lacks the right, or the server is draining (DRAINING). The wrappers (unary.h, stream_reactor.h,
  // upload_reactor.h) check this before they run the method. On TLS and local transports gRPC has checked the caller's
  // rights before (auth_processor.h).
  const absl::Status& admitted() const { return admitted_; }
  const auth::Principal& principal() const { return principal_; }
  const std::string& request_id() const { return request_id_; }
  const base::CancelToken& cancel() const { return cancel_; }
  // The client's deadline on the monotonic clock. InfiniteDuration: the client set none.
  absl::Duration deadline() const { return deadline_; }
  // The client's deadline. Without one: `patience` after the call arrived.
  absl::Duration DeadlineOr(absl::Duration patience) const {
    return deadline_ == absl::InfiniteDuration() ? began_ + patience : deadline_;
  }
  absl::Duration began() const { return began_; }
  // Call this after waiting in a queue, before long work. Errors, with stage QUEUE: DeadlineExceeded from `limit` on,
  // Cancelled if the client is gone or the request was aborted.
  absl::Status StillWanted(absl::Duration limit) const;

  // Counts and logs the end, and maps the status. Call it once. A cancel after the client's deadline is counted and
  // logged as DeadlineExceeded: gRPC reports both to the server as a cancel, and the client saw DeadlineExceeded.
  grpc::Status End(const absl::Status& status);
  void Cancel() { cancel_.Cancel(); }
  // For work that polls for cancellation.
  base::Cancelled stopped() const {
    return [cancel = cancel_] { return cancel.cancelled(); };
  }
  // Ends the call for the client too, as if the client had cancelled it. Must not be called after the call has
  // finished.
  void Cut() const { context_->TryCancel(); }

 private:
  bool PastDeadline() const;
  // Watches, trainer reports and streams of KServe's requests run until the client or a drain ends them.
  bool EndsByItself() const { return type_ != CallType::kBidiStream && !method_.starts_with("Watch"); }

  CallEnvironment& environment_;
  grpc::CallbackServerContext* const context_;
  const CallType type_;
  const std::string_view service_;
  const std::string_view method_;
  std::string request_id_;
  absl::Duration began_;
  absl::Duration deadline_;
  base::CancelToken cancel_;
  absl::Status admitted_;
  std::string peer_;  // "": context_->peer()
  auth::Principal principal_{base::kUnnamedCaller, auth::Role::kAdmin,
                             ""};  // without an authority, every caller is an admin
};

// Creates the method's metric series with the value 0.
void RegisterMethod(telemetry::Metrics& metrics, CallType type, std::string_view method);

}  // namespace nibble::rpc
