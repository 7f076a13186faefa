#pragma once
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/rpc/call.h"
#include "server/rpc/status.h"

namespace nibble::rpc {

// What a client stream's messages do. One at a time, on workers.
template <typename Request>
class UploadSink {
 public:
  virtual ~UploadSink() = default;  // without a last message, leaves nothing behind
  // True: that was the last message, and the response is filled.
  virtual absl::StatusOr<bool> Take(const Request& message) = 0;
};

// A client stream into a sink. Owned by gRPC.
template <typename Request>
class UploadReactor : public grpc::ServerReadReactor<Request> {
 public:
  UploadReactor(Edge& edge, grpc::CallbackServerContext* context, const char* method,
                std::unique_ptr<UploadSink<Request>> sink)
      : call_(edge, context, CallType::kClientStream, method), sink_(std::move(sink)) {
    if (!call_.admitted().ok()) {
      End(call_.admitted());
    } else {
      this->StartRead(&message_);
    }
  }

 private:
  void OnReadDone(bool ok) override {
    if (ok) {
      call_.edge().workers.Run([this] { Process(); });
      return;
    }
    End(call_.cancel().cancelled() ? absl::CancelledError("cancelled by the client, or its deadline passed")
                                   : base::FieldError("message", "the stream ended before `finish`"));
  }
  void Process() {
    const Edge& edge = call_.edge();
    // A large chunk is counted by the bytes of what is uploaded: their limit bounds the number of such messages.
    const std::size_t large = edge.max_chunk_bytes / 2;
    if (message_.ByteSizeLong() < large && ++num_messages_ > edge.max_stream_messages) {
      const auto what = base::StrCat("more than ", edge.max_stream_messages, " messages of less than ", large, " bytes");
      return End(base::WithReason(absl::ResourceExhaustedError(what), "MESSAGE_TOO_LARGE"));
    }
    if (call_.edge().clock.Monotonic() - call_.began() > edge.max_stream_age) {
      return End(absl::DeadlineExceededError("the stream is too old"));
    }
    const absl::StatusOr<bool> last = sink_->Take(message_);
    if (!last.ok()) return End(last.status());
    if (*last) return End(absl::OkStatus());
    this->StartRead(&message_);
  }
  // What was written goes away before the answer: whoever sees it may try again at once.
  void End(const absl::Status& status) {
    sink_.reset();
    this->Finish(call_.End(status));
  }
  void OnCancel() override { call_.Cancel(); }
  void OnDone() override { delete this; }

  Call call_;
  std::unique_ptr<UploadSink<Request>> sink_;
  Request message_;
  std::int64_t num_messages_ = 0;
};

// Methods that are not built, of every kind of stream.
template <typename Request>
class UnbuiltUpload : public grpc::ServerReadReactor<Request> {
 public:
  UnbuiltUpload(Edge& edge, grpc::CallbackServerContext* context, const char* method) {
    Call call(edge, context, CallType::kClientStream, method);
    this->Finish(call.End(call.admitted().ok() ? NotBuilt(method) : call.admitted()));
  }

 private:
  void OnDone() override { delete this; }
};

template <typename Response>
class UnbuiltStream : public grpc::ServerWriteReactor<Response> {
 public:
  UnbuiltStream(Edge& edge, grpc::CallbackServerContext* context, const char* method) {
    Call call(edge, context, CallType::kServerStream, method);
    this->Finish(call.End(call.admitted().ok() ? NotBuilt(method) : call.admitted()));
  }

 private:
  void OnDone() override { delete this; }
};

}  // namespace nibble::rpc
