#include "client/client.h"

#include <algorithm>
#include <utility>

#include "client/stubs.h"

namespace nibble::client {
namespace {

// The server's default of --max_send_bytes; gRPC's default limit is 4 MiB.
constexpr int kMaxReceiveBytes = 16 << 20;
// Detects a dead peer during a call without a deadline. The server accepts pings that are at least 10 s apart
// (--min_ping_interval_s).
constexpr int kKeepaliveMs = 30'000;
constexpr int kKeepaliveTimeoutMs = 20'000;
// Long enough for a remote or busy machine.
constexpr int kConnectMs = 10'000;

}  // namespace

Client Client::Connect(const std::string& server, const ClientOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  // By default gRPC stops after two pings until the client sends data, and a watch never sends any.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Reconnects to a restarted server within a second, not after two minutes. The minimum backoff is also the time that
  // each attempt may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Ignore proxy settings of the environment: the user gave the server's address.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return Client(MakeChannel(server, options.security, arguments), options);
}

Client::Client(const std::shared_ptr<grpc::Channel>& channel, const ClientOptions& options)
    : options_(options),
      stubs_(std::make_shared<Stubs>(Stubs{v1::DatasetService::NewStub(channel), v1::FineTuneService::NewStub(channel),
                                           v1::ModelService::NewStub(channel), v1::InferenceService::NewStub(channel),
                                           v1::ServerService::NewStub(channel), v1::UploadService::NewStub(channel),
                                           google::longrunning::Operations::NewStub(channel),
                                           grpc::health::v1::Health::NewStub(channel)})) {}

template <>
v1::DatasetService::Stub& Client::StubFor() {
  return *stubs_->datasets;
}
template <>
v1::FineTuneService::Stub& Client::StubFor() {
  return *stubs_->jobs;
}
template <>
v1::ModelService::Stub& Client::StubFor() {
  return *stubs_->models;
}
template <>
v1::InferenceService::Stub& Client::StubFor() {
  return *stubs_->inference;
}
template <>
v1::ServerService::Stub& Client::StubFor() {
  return *stubs_->server;
}
template <>
v1::UploadService::Stub& Client::StubFor() {
  return *stubs_->uploads;
}
template <>
google::longrunning::Operations::Stub& Client::StubFor() {
  return *stubs_->operations;
}
template <>
grpc::health::v1::Health::Stub& Client::StubFor() {
  return *stubs_->health;
}

void Client::SetDeadline(grpc::ClientContext& context, absl::Duration deadline) {
  if (deadline != absl::InfiniteDuration()) context.set_deadline(absl::ToChronoTime(absl::Now() + deadline));
}

absl::Status Client::Retry(const std::function<absl::Status()>& call) {
  absl::Duration wait = options_.first_wait;
  for (int attempt = 1;; ++attempt) {
    absl::Status status = call();
    if (!absl::IsUnavailable(status) || attempt >= options_.attempts) return status;
    absl::SleepFor(std::min(RetryDelay(status).value_or(wait), options_.longest_wait));
    wait = std::min(wait * 2, options_.longest_wait);
  }
}

absl::Status Client::GenerateStream(const v1::GenerateRequest& request, bool chat,
                                    const std::function<absl::Status(const v1::GenerateReply&)>& on_reply) {
  const int outputs = request.sampling().has_n() ? request.sampling().n() : 1;
  bool started = false;
  absl::Status broken = absl::OkStatus();
  const auto once = [&]() -> absl::Status {
    grpc::ClientContext context;
    SetDeadline(context, options_.long_deadline);
    std::unique_ptr<grpc::ClientReader<v1::GenerateReply>> reader;
    if (chat) {
      v1::ChatStreamRequest message;
      *message.mutable_request() = request;
      reader = stubs_->inference->ChatStream(&context, message);
    } else {
      v1::GenerateStreamRequest message;
      *message.mutable_request() = request;
      reader = stubs_->inference->GenerateStream(&context, message);
    }
    std::vector<bool> finished(static_cast<std::size_t>(std::max(outputs, 0)), false);
    bool ended = false;
    const auto in_order = [&](const v1::GenerateReply& reply) {
      const auto open = [&](int index) {
        return started && !ended && index >= 0 && index < outputs && !finished[static_cast<std::size_t>(index)];
      };
      switch (reply.event_case()) {
        case v1::GenerateReply::kStart: return !std::exchange(started, true);
        case v1::GenerateReply::kPromptLogprobs: return started && !ended;
        case v1::GenerateReply::kDelta: return open(reply.delta().index());
        case v1::GenerateReply::kFinish:
          if (!open(reply.finish().index())) return false;
          finished[static_cast<std::size_t>(reply.finish().index())] = true;
          return true;
        case v1::GenerateReply::kUsage:
          if (std::find(finished.begin(), finished.end(), false) != finished.end()) return false;
          return !std::exchange(ended, true);
        case v1::GenerateReply::EVENT_NOT_SET: return false;
      }
      return false;
    };
    v1::GenerateReply reply;
    while (reader->Read(&reply)) {
      broken = in_order(reply) ? on_reply(reply)
                               : absl::DataLossError("malformed response: the server's messages are out of order");
      if (!broken.ok()) {
        context.TryCancel();
        while (reader->Read(&reply)) {
        }
        static_cast<void>(reader->Finish());
        return broken;
      }
    }
    absl::Status status = FromGrpc(reader->Finish());
    if (status.ok() && !ended) return absl::DataLossError("malformed response: the stream ended without its usage");
    return status;
  };
  // After the first message a retry would pass on the same messages twice.
  absl::Status final_status;
  absl::Status last = Retry([&]() -> absl::Status {
    final_status = once();
    return started || !broken.ok() ? absl::OkStatus() : final_status;
  });
  return last.ok() ? final_status : last;
}

absl::StatusOr<v1::ScoreResponse> Client::ScoreStream(const v1::ScoreRequest& request) {
  v1::ScoreStreamRequest message;
  *message.mutable_request() = request;
  v1::ScoreResponse joined;
  // The caller has seen nothing yet, so a retry can start from the beginning.
  const absl::Status status = Retry([&]() -> absl::Status {
    joined.Clear();
    grpc::ClientContext context;
    SetDeadline(context, options_.long_deadline);
    const auto reader = stubs_->inference->ScoreStream(&context, message);
    bool ended = false, in_order = true;
    for (v1::ScoreReply reply; reader->Read(&reply);) {
      if (reply.has_tokens()) {
        in_order = in_order && !ended && reply.tokens().first_position() == joined.tokens_size();
        joined.mutable_tokens()->MergeFrom(reply.tokens().tokens());
      } else {
        in_order = in_order && reply.has_finish() && !std::exchange(ended, true);
        joined.set_mean_loss(reply.finish().mean_loss());
        joined.set_perplexity(reply.finish().perplexity());
        *joined.mutable_usage() = reply.finish().usage();
        joined.set_weights_digest(reply.finish().weights_digest());
      }
      if (!in_order) context.TryCancel();
    }
    absl::Status end = FromGrpc(reader->Finish());
    if (!in_order) return absl::DataLossError("malformed response: the server's messages are out of order");
    if (end.ok() && !ended) return absl::DataLossError("malformed response: the stream ended without its finish");
    return end;
  });
  if (!status.ok()) return status;
  return joined;
}

}  // namespace nibble::client
