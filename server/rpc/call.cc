#include "server/rpc/call.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "google/rpc/error_details.pb.h"
#include "server/auth/auth_processor.h"
#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/base/strings.h"
#include "server/rpc/status.h"

namespace nibble::rpc {

namespace {

constexpr char kRequestIdKey[] = "x-request-id";
constexpr std::string_view kServerService = "nibble.v1.ServerService";
constexpr std::string_view kTrainerService = "nibble.internal.v1.TrainerReportService";
constexpr std::size_t kMaxRequestIdBytes = 64;
// A client's deadline passes sooner at the client than here: the call spent time on the way, and gRPC rounds the
// timeout up to three digits, by at most a hundredth (timeout_encoding.cc).
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(50);
constexpr int kTimeoutSteps = 100;

const char* Name(CallType type) {
  switch (type) {
    case CallType::kUnary: return "unary";
    case CallType::kClientStream: return "client_stream";
    case CallType::kServerStream: return "server_stream";
    case CallType::kBidiStream: return "bidi_stream";
  }
  return "unary";
}

std::string_view ServiceOf(std::string_view method) { return method.substr(0, method.find('/')); }
std::string_view MethodOf(std::string_view method) { return method.substr(method.find('/') + 1); }

// The client's id if it is safe to log, otherwise a new one.
std::string RequestId(const grpc::CallbackServerContext& context) {
  const auto it = context.client_metadata().find(kRequestIdKey);
  if (it == context.client_metadata().end()) return base::NewId("req");
  const std::string id(it->second.data(), it->second.size());
  const bool good =
      !id.empty() && id.size() <= kMaxRequestIdBytes &&
      id.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == std::string::npos;
  return good ? id : base::NewId("req");
}

// Hides the text of an internal error, which only the log shows.
absl::Status Veiled(const absl::Status& status, const std::string& request_id) {
  absl::Status out(status.code(), base::StrCat("internal error; the server's log has details under ", request_id));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { out.SetPayload(url, payload); });
  return out;
}

}  // namespace

std::uint64_t DrainList::Add(Callback callback) {
  {
    base::MutexLock lock(mutex_);
    if (!fired_) {
      callbacks_[next_id_] = std::move(callback);
      return next_id_++;
    }
  }
  callback();
  return 0;
}

void DrainList::Remove(std::uint64_t id) {
  base::MutexLock lock(mutex_);
  callbacks_.erase(id);
}

void DrainList::Fire() {
  std::map<std::uint64_t, Callback> callbacks;
  {
    base::MutexLock lock(mutex_);
    fired_ = true;
    callbacks.swap(callbacks_);
  }
  for (const auto& [id, callback] : callbacks) callback();
}

Call::Call(CallEnvironment& environment, grpc::CallbackServerContext* context, CallType type, const char* method,
           bool for_trainers)
    : environment_(environment),
      context_(context),
      type_(type),
      service_(ServiceOf(method)),
      method_(MethodOf(method)),
      request_id_(RequestId(*context)),
      began_(environment.clock.Monotonic()),
      deadline_(absl::InfiniteDuration()) {
  context->AddInitialMetadata(kRequestIdKey, request_id_);
  if (context->deadline() != std::chrono::system_clock::time_point::max()) {
    deadline_ = began_ + absl::FromChrono(context->deadline() - std::chrono::system_clock::now());
  }
  // Add before checking `draining`, so that a drain that waits for live calls sees every admitted call.
  if (EndsByItself()) environment_.live_calls.Add(context_);
  bool forwarded = false;  // by the code of another protocol, which has counted the client's request
  if (environment_.authority != nullptr) {
    auth::Caller caller = auth::CallerOf(*context);
    caller.trainer_listener |= for_trainers;
    forwarded = environment_.authority->Resolve(caller);
    peer_ = caller.peer;
    auto principal = environment_.authority->Admit(method, caller);
    admitted_ = principal.status();
    if (principal.ok()) principal_ = *std::move(principal);
  }
  // While the server drains, administrators need its status, and trainers report their checkpoints.
  const bool stays_open = service_ == kServerService || service_ == kTrainerService;
  if (admitted_.ok() && environment_.draining && !stays_open) {
    admitted_ = base::WithReason(absl::UnavailableError("the server is shutting down"), "DRAINING");
  }
  environment_.metrics.RpcStarted(Name(type_), service_, method_);
  // Two methods are bidirectional streams: KServe's counts each request in the stream, and trainers call the other.
  if (!forwarded && type_ != CallType::kBidiStream)
    environment_.metrics.ClientRequest(service_ == kKServeService ? "kserve" : "grpc");
}

absl::Status Call::StillWanted(absl::Duration limit) const {
  absl::Status status;
  if (environment_.clock.Monotonic() >= limit) {
    status = absl::DeadlineExceededError("the deadline passed before the call began");
  } else if (cancel_.cancelled()) {
    status = absl::CancelledError("cancelled before the call began");
  }
  return StoppedAt(status, kStageQueue, 0);
}

bool Call::PastDeadline() const {
  if (deadline_ == absl::InfiniteDuration()) return false;
  return environment_.clock.Monotonic() >= deadline_ - std::max(kDeadlineSlack, (deadline_ - began_) / kTimeoutSteps);
}

grpc::Status Call::End(const absl::Status& status) {
  if (EndsByItself()) environment_.live_calls.Remove(context_);
  const double seconds = absl::ToDoubleSeconds(environment_.clock.Monotonic() - began_);
  const bool late = absl::IsCancelled(status) && PastDeadline();
  const char* code = CodeName(late ? absl::StatusCode::kDeadlineExceeded : status.code());
  environment_.metrics.RpcHandled(Name(type_), service_, method_, code, seconds);
  const std::string reason = status.ok() ? "" : late ? code : base::Reason(status);
  if (reason == "QUEUE_FULL" || reason == "STREAMS_FULL" || reason == "KV_FULL" || reason == "DRAINING" ||
      reason == "PROMPT_TOO_LONG") {
    environment_.metrics.Rejected(reason);
  }
  const bool ours = absl::IsInternal(status) || absl::IsDataLoss(status) || absl::IsUnknown(status);
  const auto log = ours ? base::LogError : base::LogInfo;
  log("rpc", {{"method", base::StrCat(service_, "/", method_)},
              {"request_id", request_id_},
              {"principal", admitted_.ok() ? principal_.name : ""},
              {"peer", peer_.empty() ? context_->peer() : peer_},
              {"code", code},
              {"reason", reason},
              {"ms", static_cast<std::int64_t>(seconds * 1e3)},
              {"error", status.ok() ? "" : ToUtf8(base::ToStd(status.message()), 512)}});
  if (!ours) return ToGrpcStatus(status);
  // The server's own fault: the request id leads to the log line.
  google::rpc::RequestInfo request;
  request.set_request_id(request_id_);
  absl::Status shown = absl::IsDataLoss(status) ? status : Veiled(status, request_id_);
  shown.SetPayload("type.googleapis.com/google.rpc.RequestInfo", absl::Cord(request.SerializeAsString()));
  return ToGrpcStatus(shown);
}

void RegisterMethod(telemetry::Metrics& metrics, CallType type, std::string_view method) {
  metrics.RpcKnown(Name(type), ServiceOf(method), MethodOf(method));
}

}  // namespace nibble::rpc
