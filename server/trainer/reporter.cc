#include "server/trainer/reporter.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "nibble/internal/v1/trainer_report.grpc.pb.h"
#include "server/base/log.h"
#include "server/base/mutex.h"

namespace nibble::trainer {

namespace v1 = ::nibble::internal::v1;

namespace {

// FENCED is the only refusal that ends the attempt. Another server that now listens on the port of a dead one also
// refuses, because it knows neither job nor token: then the reporter retries, as for an unreachable server.
bool SaysFenced(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return false;
  for (const auto& detail : details.details()) {
    google::rpc::ErrorInfo info;
    if (detail.UnpackTo(&info) && info.domain() == "nibble" && info.reason() == "FENCED") return true;
  }
  return false;
}

// The server may be away for hours, but a command must not wait for long once it is back.
constexpr int kMaxReconnectMs = 10'000;
// Time between pings, which detect a peer that vanished without closing the connection. Longer than the default of the
// server's --min_ping_interval_s.
constexpr int kKeepaliveMs = 30'000;

std::shared_ptr<grpc::Channel> MakeChannel(const Reporter::Options& options) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // the server is in the same cluster
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = options.ca;
  const auto credentials = options.ca.empty() ? grpc::InsecureChannelCredentials() : grpc::SslCredentials(tls);
  return grpc::CreateCustomChannel(options.address, credentials, arguments);
}

std::optional<jobs::Control> StopOf(const v1::ReportResponse& response) {
  switch (response.command()) {
    case v1::TRAINER_COMMAND_CANCEL:
      return response.keep_checkpoint() ? jobs::Control::kCancelKeeping : jobs::Control::kCancel;
    case v1::TRAINER_COMMAND_PAUSE: return jobs::Control::kPause;
    default: return std::nullopt;
  }
}

}  // namespace

struct Reporter::State {
  Options options;
  base::Mutex mutex;
  base::Condition changed;
  std::deque<std::string> lines ABSL_GUARDED_BY(mutex);  // from sequence `first` on
  std::int64_t first ABSL_GUARDED_BY(mutex) = 1;
  std::size_t queued_bytes ABSL_GUARDED_BY(mutex) = 0;  // of `lines`
  std::int64_t acknowledged ABSL_GUARDED_BY(mutex) = 0;
  std::int64_t written ABSL_GUARDED_BY(mutex) = 0;  // sequence of the last line passed to Send
  bool broken ABSL_GUARDED_BY(mutex) = false;       // the open stream has ended
  bool stop ABSL_GUARDED_BY(mutex) = false;
  // Of the open stream: every message, from the hello on, has one answer.
  std::int64_t messages ABSL_GUARDED_BY(mutex) = 0;
  std::int64_t answers ABSL_GUARDED_BY(mutex) = 0;
  bool ask ABSL_GUARDED_BY(mutex) = false;  // Ask waits for the answer to a heartbeat that is not sent yet
  std::optional<jobs::Control> command ABSL_GUARDED_BY(mutex);
  std::string checkpoint_request ABSL_GUARDED_BY(mutex);
  std::atomic<bool> fenced = false;
  grpc::ClientContext* context ABSL_GUARDED_BY(mutex) = nullptr;  // of the open stream, for cancelling it
  std::thread thread;

  void Run() {
    const auto stub = v1::TrainerReportService::NewStub(MakeChannel(options));
    std::string last_error;
    while (true) {
      {
        base::MutexLock lock(mutex);
        if (stop || fenced) return;
      }
      const grpc::Status ended = Stream(*stub);
      base::MutexLock lock(mutex);
      if (!stop && !fenced && !ended.ok() && ended.error_message() != last_error) {
        last_error = ended.error_message();
        base::LogWarning("cannot report to the server, will retry",
                         {{"address", options.address}, {"error", last_error}});
      }
      changed.WaitFor(lock, std::chrono::seconds(1), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return stop; });
    }
  }

  void Drop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    queued_bytes -= lines.front().size();
    lines.pop_front();
    ++first;
  }

  void Take(const v1::ReportResponse& response) {
    base::MutexLock lock(mutex);
    ++answers;
    acknowledged = std::max(acknowledged, std::min(written, response.acknowledged_sequence()));
    while (first <= acknowledged && !lines.empty()) Drop();
    if (const auto stop_now = StopOf(response); stop_now.has_value()) command = stop_now;
    if (!response.checkpoint_request().empty()) checkpoint_request = response.checkpoint_request();
    changed.NotifyAll();
  }

  // Waits for the next message: a line, or a heartbeat, for Ask or after a time without a line. False if the stream has
  // ended, or if the reporter stops and has sent all lines.
  bool Next(std::int64_t& sent, v1::ReportRequest& request) {
    base::MutexLock lock(mutex);
    const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      // The server also reads the journal from the disk, so it may have acknowledged lines that were not sent yet.
      // Others may have been dropped.
      sent = std::max({sent, acknowledged, first - 1});
      return stop || broken || ask || sent < written;
    };
    const bool woken = changed.WaitFor(lock, absl::ToChronoNanoseconds(options.heartbeat), ready);
    if (broken || (stop && sent >= written)) return false;
    ++messages;
    if (woken && sent < written) {
      request.mutable_line()->set_json(lines[static_cast<std::size_t>(sent + 1 - first)]);
      ++sent;
    } else {
      request.mutable_heartbeat();
      ask = false;
    }
    return true;
  }

  // Runs one connection until it breaks or the reporter stops.
  grpc::Status Stream(v1::TrainerReportService::Stub& stub) {
    grpc::ClientContext client_context;
    client_context.set_wait_for_ready(false);
    const auto stream = stub.Report(&client_context);
    std::int64_t sent = 0;
    {
      base::MutexLock lock(mutex);
      if (stop) client_context.TryCancel();  // The destructor may have run before there was a context to cancel.
      context = &client_context;
      broken = ask = false;
      messages = 1;  // the hello
      answers = 0;
      sent = acknowledged;
    }
    std::thread reader([&] {
      v1::ReportResponse response;
      while (stream->Read(&response)) Take(response);
      base::MutexLock lock(mutex);
      broken = true;
      changed.NotifyAll();
    });
    v1::ReportRequest hello;
    hello.mutable_hello()->set_job_id(options.job_id);
    hello.mutable_hello()->set_attempt(static_cast<std::int32_t>(options.attempt));
    hello.mutable_hello()->set_token(options.token);
    bool open = stream->Write(hello);
    while (open) {
      v1::ReportRequest request;
      if (!Next(sent, request)) break;
      open = stream->Write(request);
    }
    stream->WritesDone();
    {
      base::MutexLock lock(mutex);
      if (stop) client_context.TryCancel();
    }
    reader.join();
    grpc::Status status = stream->Finish();
    base::MutexLock lock(mutex);
    context = nullptr;
    if (SaysFenced(status)) {
      fenced = true;
      changed.NotifyAll();
    }
    return status;
  }
};

Reporter::Reporter(Options options) : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
  if (!state_->options.address.empty()) state_->thread = std::thread([this] { state_->Run(); });
}

Reporter::~Reporter() {
  {
    base::MutexLock lock(state_->mutex);
    state_->stop = true;
    if (state_->context != nullptr) state_->context->TryCancel();
    state_->changed.NotifyAll();
  }
  if (state_->thread.joinable()) state_->thread.join();
}

void Reporter::Send(std::string line) {
  base::MutexLock lock(state_->mutex);
  if (state_->options.address.empty()) return;
  state_->queued_bytes += line.size();
  state_->lines.push_back(std::move(line));
  ++state_->written;
  while (state_->queued_bytes > state_->options.max_queued_bytes && state_->lines.size() > 1) state_->Drop();
  state_->changed.NotifyAll();
}

void Reporter::Flush(absl::Duration timeout) {
  base::MutexLock lock(state_->mutex);
  state_->changed.WaitFor(lock, absl::ToChronoNanoseconds(timeout), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    return state_->fenced || state_->acknowledged >= state_->written;
  });
}

bool Reporter::fenced() const { return state_->fenced; }

std::optional<jobs::Control> Reporter::stop() const {
  base::MutexLock lock(state_->mutex);
  return state_->command;
}

void Reporter::Ask(absl::Duration timeout) {
  State& s = *state_;
  base::MutexLock lock(s.mutex);
  if (s.context == nullptr || s.broken) return;
  s.ask = true;
  s.changed.NotifyAll();
  s.changed.WaitFor(lock, absl::ToChronoNanoseconds(timeout), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(s.mutex) {
    return s.broken || s.stop || (!s.ask && s.answers >= s.messages);
  });
}

std::string Reporter::checkpoint_request() const {
  base::MutexLock lock(state_->mutex);
  return state_->checkpoint_request;
}

}  // namespace nibble::trainer
