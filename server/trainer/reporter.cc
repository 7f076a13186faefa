#include "server/trainer/reporter.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "nibble/internal/v1/trainer_report.grpc.pb.h"
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

}  // namespace

struct Reporter::State {
  Options options;
  base::Mutex mutex;
  base::Condition changed;
  std::deque<std::string> lines ABSL_GUARDED_BY(mutex);  // from acknowledged + 1 on
  std::int64_t acknowledged ABSL_GUARDED_BY(mutex) = 0;
  std::int64_t written ABSL_GUARDED_BY(mutex) = 0;  // sequence of the last line passed to Send
  bool broken ABSL_GUARDED_BY(mutex) = false;       // the open stream has ended
  bool stop ABSL_GUARDED_BY(mutex) = false;
  std::atomic<bool> fenced = false;
  grpc::ClientContext* context ABSL_GUARDED_BY(mutex) = nullptr;  // of the open stream, for cancelling it
  std::thread thread;

  void Run() {
    const auto channel = grpc::CreateChannel(options.address, grpc::InsecureChannelCredentials());
    const auto stub = v1::TrainerReportService::NewStub(channel);
    while (true) {
      {
        base::MutexLock lock(mutex);
        if (stop || fenced) return;
      }
      Stream(*stub);
      base::MutexLock lock(mutex);
      changed.WaitFor(lock, std::chrono::seconds(1), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return stop; });
    }
  }

  // Runs one connection until it breaks or the reporter stops.
  void Stream(v1::TrainerReportService::Stub& stub) {
    grpc::ClientContext client_context;
    client_context.set_wait_for_ready(false);
    const auto stream = stub.Report(&client_context);
    std::int64_t sent = 0;
    {
      base::MutexLock lock(mutex);
      if (stop) client_context.TryCancel();  // The destructor may have run before there was a context to cancel.
      context = &client_context;
      broken = false;
      sent = acknowledged;
    }
    std::thread reader([&] {
      v1::ReportResponse response;
      while (stream->Read(&response)) {
        base::MutexLock lock(mutex);
        while (acknowledged < response.acknowledged_sequence() && !lines.empty()) {
          lines.pop_front();
          ++acknowledged;
        }
        changed.NotifyAll();
      }
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
      {
        base::MutexLock lock(mutex);
        changed.Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
          // The server also reads the journal from the disk, so it may have acknowledged lines that were not sent yet.
          sent = std::max(sent, acknowledged);
          return stop || broken || sent < written;
        });
        if (broken || (stop && sent >= written)) break;
        const std::int64_t index = sent - acknowledged;
        ++sent;
        request.mutable_line()->set_json(lines[static_cast<std::size_t>(index)]);
      }
      open = stream->Write(request);
    }
    stream->WritesDone();
    {
      base::MutexLock lock(mutex);
      if (stop) client_context.TryCancel();
    }
    reader.join();
    const grpc::Status status = stream->Finish();
    base::MutexLock lock(mutex);
    context = nullptr;
    if (SaysFenced(status)) {
      fenced = true;
      changed.NotifyAll();
    }
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
  state_->lines.push_back(std::move(line));
  ++state_->written;
  state_->changed.NotifyAll();
}

void Reporter::Flush(absl::Duration timeout) {
  base::MutexLock lock(state_->mutex);
  state_->changed.WaitFor(lock, absl::ToChronoNanoseconds(timeout), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    return state_->fenced || state_->acknowledged >= state_->written;
  });
}

bool Reporter::fenced() const { return state_->fenced; }

}  // namespace nibble::trainer
