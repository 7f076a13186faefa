// What every RPC has around its one core call: a request id, the metrics, the log line, the deadline, the mapping of errors.
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
#include "server/base/cancel_token.h"
#include "server/base/clock.h"
#include "server/base/cancelled.h"
#include "server/base/mutex.h"
#include "server/rpc/auth_tokens.h"
#include "server/rpc/live_calls.h"
#include "server/rpc/stream_slots.h"
#include "server/rpc/worker_pool.h"
#include "server/telemetry/metrics.h"

namespace nibble::rpc {

// Who is to be told when the server begins to stop. Thread-safe.
class DrainList {
 public:
  using Callback = std::function<void()>;
  // 0, and the callback was called, when it has begun already.
  std::uint64_t Add(Callback callback);
  void Remove(std::uint64_t id);  // not from within the callback
  void Fire();

 private:
  base::Mutex mutex_;
  std::uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  bool fired_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::uint64_t, Callback> callbacks_ ABSL_GUARDED_BY(mutex_);
};

class Authority;

// What the services share. Outlives them.
struct Edge {
  Edge(telemetry::Metrics& metrics_in, WorkerPool& workers_in, base::Clock& clock_in, std::atomic<bool>& draining_in)
      : metrics(metrics_in), workers(workers_in), clock(clock_in), draining(draining_in) {}

  telemetry::Metrics& metrics;
  WorkerPool& workers;
  base::Clock& clock;
  std::atomic<bool>& draining;
  DrainList drain;
  LiveCalls live_calls;
  Authority* authority = nullptr;  // nullptr: whoever calls may
  std::atomic<int> live_answers{0};                     // requests that an engine may still call back about
  absl::Duration default_deadline = absl::Seconds(30);  // of a unary call whose client gave none
  std::size_t stream_buffer = 256;                      // messages a slow reader may be behind
  absl::Duration generate_deadline = absl::InfiniteDuration();  // of a Generate, Chat or Score whose client gave none
  absl::Duration slow_reader = absl::Seconds(30);       // over which a reader that is behind must take messages at min_read_rate
  double min_read_rate = 1;                             // messages a second
  absl::Duration last_read = absl::Seconds(10);         // that an aborted stream waits for its client to read the status; then it is cut
  absl::Duration max_stream_age = absl::Hours(1);       // of an upload
  std::int64_t max_stream_messages = 10'000;
  std::size_t max_chunk_bytes = 1u << 20;
  static constexpr std::size_t kMaxPageBytes = 2u << 20;  // half of what a gRPC client takes that was not told otherwise
  std::size_t max_page_bytes = kMaxPageBytes;             // of a list's page
  std::size_t max_dataset_line_bytes = 1u << 20;
  std::size_t max_prompt_bytes = 1u << 20;              // of a text that is encoded for a call
  std::size_t max_send_bytes = 16u << 20;               // of an answer: more is not begun, for gRPC would not send it
  StreamSlots watches{"--max_watches", 256, "--max_watches_per_principal", 64};  // WatchJob and WatchLoad
  StreamSlots downloads{"--max_downloads", 16, "--max_downloads_per_principal", 8};
  // Plans of PlanJob, running and waiting. Limited per principal alone: their lane of operations has a limit of its own.
  StreamSlots plans{"", std::numeric_limits<int>::max(), "--max_plans_per_principal", 8, "QUEUE_FULL"};
  // For watches alone: however many wake at once, other calls find their workers free. The last members: their tasks use the others.
  WorkerPool watch_workers{/*num_threads=*/2, /*max_waiting=*/256};
  // For large texts alone: they are encoded one at a time.
  WorkerPool text_workers{/*num_threads=*/1, /*max_waiting=*/64};
};

enum class CallType { kUnary, kClientStream, kServerStream, kBidiStream };

// One RPC from begin to end. Thread-compatible, but for cancel().
class Call {
 public:
  // `method`: a constant "nibble.v1.ModelService/GetModel".
  Call(Edge& edge, grpc::CallbackServerContext* context, CallType type, const char* method);

  Edge& edge() const { return edge_; }
  // Not Ok: this caller may not do this, or the server admits nothing any more (DRAINING). Checked by the wrappers (unary.h,
  // stream_reactor.h, upload_reactor.h) before the core is called; on TLS and local transports gRPC has asked already
  // (auth_processor.h).
  const absl::Status& admitted() const { return admitted_; }
  const Principal& principal() const { return principal_; }
  const std::string& request_id() const { return request_id_; }
  const base::CancelToken& cancel() const { return cancel_; }
  // Of the client, on the monotonic clock; InfiniteDuration when it gave none.
  absl::Duration deadline() const { return deadline_; }
  // The same, or where there is none that of the server, `patience` after the call came.
  absl::Duration DeadlineOr(absl::Duration patience) const {
    return deadline_ == absl::InfiniteDuration() ? began_ + patience : deadline_;
  }
  absl::Duration began() const { return began_; }
  // Asked when its turn has come, before what is long is begun: DeadlineExceeded from `limit` on, Cancelled where the client has
  // gone or the request was aborted; stage QUEUE.
  absl::Status StillWanted(absl::Duration limit) const;

  // Counts and logs the end, and maps the status. Once. Where the client's deadline has passed, a cancel is counted and logged as
  // DeadlineExceeded: gRPC tells of both alike, and the client has been told so.
  grpc::Status End(const absl::Status& status);
  void Cancel() { cancel_.Cancel(); }
  // For work that asks whether to go on.
  base::Cancelled stopped() const {
    return [cancel = cancel_] { return cancel.cancelled(); };
  }
  // Ends the call for its client too, as if that had cancelled. Not after it was finished.
  void Cut() const { context_->TryCancel(); }

 private:
  bool PastDeadline() const;
  // Watches and the trainers' reports go on until somebody ends them.
  bool EndsByItself() const { return type_ != CallType::kBidiStream && !method_.starts_with("Watch"); }

  Edge& edge_;
  grpc::CallbackServerContext* const context_;
  const CallType type_;
  const std::string_view service_;
  const std::string_view method_;
  std::string request_id_;
  absl::Duration began_;
  absl::Duration deadline_;
  base::CancelToken cancel_;
  absl::Status admitted_;
  Principal principal_{kNobody, Role::kAdmin, ""};
};

// Series of the method exist with 0 from the start.
void RegisterMethod(telemetry::Metrics& metrics, CallType type, std::string_view method);

}  // namespace nibble::rpc
