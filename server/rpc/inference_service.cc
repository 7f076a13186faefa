#include "server/rpc/inference_service.h"

#include <algorithm>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/answer_sink.h"
#include "server/rpc/auth.h"
#include "server/rpc/model_name.h"
#include "server/rpc/request_owner.h"
#include "server/rpc/score.h"
#include "server/rpc/slow_reader.h"
#include "server/rpc/stream_reactor.h"
#include "server/rpc/tokens.h"
#include "server/rpc/unary.h"

namespace nibble::rpc {

namespace {

constexpr std::size_t kMaxRequestIdBytes = 128;
constexpr int kMaxAborted = 1000;

AnswerBounds BoundsOf(const Call& call) {
  return {.cancelled = [cancel = call.cancel()] { return cancel.cancelled(); }, .max_bytes = call.edge().max_send_bytes,
          .max_text_bytes = call.edge().max_prompt_bytes};
}

// A request that was found good, until the engine has it.
struct Asked {
  GenerateOptions options;
  std::string id;
  absl::Duration deadline;
  std::unique_ptr<RequestIds::Entry> entry;
};

absl::StatusOr<std::shared_ptr<Asked>> Check(Edge& edge, RequestIds& ids, const Call& call, const v1::GenerateRequest& proto, bool chat) {
  auto asked = std::make_shared<Asked>();
  NIBBLE_ASSIGN_OR_RETURN(asked->options, FromProto(proto, chat));
  NIBBLE_RETURN_IF_ERROR(CheckPriority(call.principal(), "priority", asked->options.request.priority));
  if (proto.request_id().size() > kMaxRequestIdBytes) {
    return base::FieldError("request_id", base::StrCat("has ", proto.request_id().size(), " bytes, wanted at most ", kMaxRequestIdBytes));
  }
  asked->id = proto.request_id().empty() ? call.request_id() : proto.request_id();
  // Before the load, which may take long: Abort finds the request there too.
  asked->entry = std::make_unique<RequestIds::Entry>(ids, asked->id, OwnerOf(call.principal()), call.cancel());
  asked->deadline = call.DeadlineOr(edge.generate_deadline);
  NIBBLE_RETURN_IF_ERROR(call.StillWanted(asked->deadline));
  return asked;
}

// Encodes the prompt and hands it to the model's engine; `make_sink` gets the context of the answer. What is not OK is still to be
// told, and Abort finds nothing any more.
template <typename MakeSink>
absl::Status Submit(Edge& edge, const Call& call, const v1::GenerateRequest& proto, Asked& asked, ModelLoads::Loaded loaded,
                    MakeSink make_sink) {
  auto entry = std::move(asked.entry);
  NIBBLE_ASSIGN_OR_RETURN(auto resident, std::move(loaded));
  NIBBLE_RETURN_IF_ERROR(call.StillWanted(asked.deadline));
  GenerateOptions& options = asked.options;
  std::string echo;
  NIBBLE_ASSIGN_OR_RETURN(auto prompt, PromptOf(proto, resident->text,
                                                {.max_tokens = resident->engine->max_context(),
                                                 .max_bytes = edge.max_prompt_bytes,
                                                 .cancelled = [cancel = call.cancel()] { return cancel.cancelled(); }},
                                                options.echo ? &echo : nullptr));
  serve::Request request = options.request;
  request.prompt = prompt;
  request.prompt_field = InputField(proto);
  request.principal = FairnessKey(call.principal());
  request.cancel = call.cancel();
  request.deadline = asked.deadline;
  request.arrived = call.began();
  // Of the wait for a slot: the load is none.
  if (options.queue_timeout.has_value()) request.queue_deadline = edge.clock.Monotonic() + *options.queue_timeout;
  serve::Engine& engine = *resident->engine;
  return engine.Submit(std::move(request),
                       make_sink(AnswerContext{.edge = edge,
                                               .resident = std::move(resident),
                                               .options = std::move(options),
                                               .request_id = asked.id,
                                               .echo_text = std::move(echo),
                                               .prompt = std::move(prompt),
                                               .entry = std::move(entry)}));
}

// An abort ends the wait for a load too.
void EndOnAbort(RequestIds::Entry& entry, const std::shared_ptr<LoadWait>& wait) {
  entry.OnAbort([weak = std::weak_ptr<LoadWait>(wait)] {
    if (const auto waiting = weak.lock(); waiting != nullptr) waiting->Cancelled();
  });
}

// Joins the replies of each output.
class UnarySink final : public AnswerSink {
 public:
  UnarySink(AnswerContext context, UnaryCall* call, v1::GenerateResponse* response)
      : AnswerSink(std::move(context)), call_(call), response_(response) {}

 private:
  v1::GenerateOutput& Output(std::int32_t index) {
    while (response_->outputs_size() <= index) response_->add_outputs()->set_index(response_->outputs_size() - 1);
    return *response_->mutable_outputs(index);
  }
  void Emit(v1::GenerateReply& reply) override {
    switch (reply.event_case()) {
      case v1::GenerateReply::kStart: response_->mutable_start()->Swap(reply.mutable_start()); return;
      case v1::GenerateReply::kDelta: {
        v1::GenerateOutput& output = Output(reply.delta().index());
        output.mutable_text()->append(reply.delta().text());
        output.mutable_token_ids()->MergeFrom(reply.delta().token_ids());
        output.mutable_logprobs()->MergeFrom(reply.delta().logprobs());
        return;
      }
      case v1::GenerateReply::kFinish: Output(reply.finish().index()).mutable_finish()->Swap(reply.mutable_finish()); return;
      case v1::GenerateReply::kUsage: response_->mutable_usage()->Swap(reply.mutable_usage()); return;
      default: return;
    }
  }
  void End(const absl::Status& status) override { call_->Done(status); }

  UnaryCall* const call_;
  v1::GenerateResponse* const response_;
};

// A reader that is behind stops its request between steps; one that stays behind loses it.
class StreamSink final : public AnswerSink {
 public:
  StreamSink(AnswerContext context, std::shared_ptr<StreamReactor<v1::GenerateReply>> stream)
      : AnswerSink(std::move(context)),
        stream_(std::move(stream)),
        cancel_(stream_->call().cancel()),
        reader_(stream_->call().edge().slow_reader, stream_->call().edge().min_read_rate) {}

 private:
  // Of every output a delta, what was held back and a finish may come before the engine asks again, and then the usage.
  bool Ready() override {
    if (stream_->ended() || stream_->caught_up()) {
      reader_.CaughtUp();
      return true;
    }
    const bool behind = stream_->space() <= 3 * static_cast<std::size_t>(num_outputs());
    if (reader_.TooSlow(stream_->taken(), behind, stream_->call().edge().clock.Monotonic())) {
      slow_ = true;
      cancel_.Cancel();
    }
    return !behind;
  }
  void Emit(v1::GenerateReply& reply) override {
    if (slow_ || stream_->Push(reply) || stream_->ended()) return;
    slow_ = true;
    cancel_.Cancel();
  }
  absl::Status Why(const absl::Status& status) const override {
    if (!slow_ || !(status.ok() || absl::IsCancelled(status))) return status;  // OK is not said of half an answer
    return base::WithReason(absl::ResourceExhaustedError("the client reads too slowly"), "SLOW_CONSUMER");
  }
  // What the slow reader has not taken is dropped: it would not come to the end.
  void End(const absl::Status& status) override { slow_ ? stream_->Abort(status) : stream_->End(status); }

  const std::shared_ptr<StreamReactor<v1::GenerateReply>> stream_;
  base::CancelToken cancel_;
  SlowReader reader_;
  bool slow_ = false;
};

}  // namespace

absl::Status InferenceService::Encode(std::size_t text_bytes, WorkerPool::Task work) {
  if (text_bytes <= text::kLargeTextBytes) {
    work();
    return absl::OkStatus();
  }
  const bool taken = edge_.text_workers.TryRun([this, came = edge_.clock.Monotonic(), work = std::move(work)]() mutable {
    edge_.text_workers.NoteWait(edge_.clock.Monotonic() - came);
    std::exchange(work, nullptr)();
    text::ReleaseFreedMemory();
  });
  return taken ? absl::OkStatus() : TooManyWait(edge_.text_workers);
}

grpc::ServerUnaryReactor* InferenceService::OnTextWorker(grpc::CallbackServerContext* context, const char* method,
                                                         std::size_t text_bytes, std::function<absl::Status(const Call&)> body) {
  if (text_bytes <= text::kLargeTextBytes) return UnaryOnWorker(edge_, context, method, std::move(body));
  const auto releasing = [body = std::move(body)](const Call& call) {
    const absl::Status status = body(call);
    text::ReleaseFreedMemory();
    return status;
  };
  return UnaryOnSlowWorker(edge_, edge_.text_workers, context, method, releasing, edge_.default_deadline);
}

grpc::ServerUnaryReactor* InferenceService::GenerateUnary(grpc::CallbackServerContext* context, const char* method,
                                                          const v1::GenerateRequest* request, bool chat,
                                                          v1::GenerateResponse* response) {
  const auto start = [this, request, chat, response](UnaryCall* call) {
    const auto checked = Check(edge_, ids_, call->call(), *request, chat);
    if (!checked.ok()) return call->Done(checked.status());
    const std::shared_ptr<Asked>& asked = *checked;
    const auto watch = [&](const std::shared_ptr<LoadWait>& wait) {
      call->OnCancelled([wait] { wait->Cancelled(); });
      EndOnAbort(*asked->entry, wait);
    };
    WithModel(loads_, request->model(), call->call(), asked->deadline, watch, [=, this](ModelLoads::Loaded loaded) {
      const absl::Status taken = Encode(TextBytes(*request), [=, this] {
        const absl::Status status = Submit(edge_, call->call(), *request, *asked, loaded, [&](AnswerContext answer) {
          return std::make_shared<UnarySink>(std::move(answer), call, response);
        });
        if (!status.ok()) call->Done(status);
      });
      if (!taken.ok()) call->Done(taken);
    });
  };
  return UnaryAsync(edge_, edge_.workers, context, method, start, edge_.generate_deadline);
}

grpc::ServerWriteReactor<v1::GenerateReply>* InferenceService::Stream(grpc::CallbackServerContext* context,
                                                                      const char* method,
                                                                      const v1::GenerateRequest* request, bool chat) {
  auto stream = StreamReactor<v1::GenerateReply>::Make(edge_, context, method);
  if (stream->ended()) return stream.get();
  // gRPC keeps the request only as long as the call: a worker may come to it later.
  const bool taken = edge_.workers.TryRun([this, stream, chat, copy = std::make_shared<const v1::GenerateRequest>(*request)] {
    edge_.workers.NoteWait(edge_.clock.Monotonic() - stream->call().began());
    if (stream->ended()) return;
    const auto checked = Check(edge_, ids_, stream->call(), *copy, chat);
    if (!checked.ok()) return stream->End(checked.status());
    const std::shared_ptr<Asked>& asked = *checked;
    const auto watch = [&](const std::shared_ptr<LoadWait>& wait) {
      stream->OnSpace([wait] { wait->Cancelled(); });  // nothing is sent before the load has ended: only the client calls it
      EndOnAbort(*asked->entry, wait);
    };
    WithModel(loads_, copy->model(), stream->call(), asked->deadline, watch, [=, this](ModelLoads::Loaded loaded) {
      stream->OnSpace(nullptr);
      const absl::Status encoded = Encode(TextBytes(*copy), [=, this] {
        const absl::Status status = Submit(edge_, stream->call(), *copy, *asked, loaded, [&](AnswerContext answer) {
          return std::make_shared<StreamSink>(std::move(answer), stream);
        });
        if (!status.ok()) stream->End(status);
      });
      if (!encoded.ok()) stream->End(encoded);
    });
  });
  if (!taken) stream->End(TooManyWait(edge_.workers));
  return stream.get();
}

grpc::ServerUnaryReactor* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                     const v1::GenerateRequest* request, v1::GenerateResponse* response) {
  return GenerateUnary(context, "nibble.v1.InferenceService/Generate", request, /*chat=*/false, response);
}

grpc::ServerWriteReactor<v1::GenerateReply>* InferenceService::GenerateStream(grpc::CallbackServerContext* context,
                                                                              const v1::GenerateStreamRequest* request) {
  return Stream(context, "nibble.v1.InferenceService/GenerateStream", &request->request(), /*chat=*/false);
}

grpc::ServerUnaryReactor* InferenceService::Chat(grpc::CallbackServerContext* context, const v1::ChatRequest* request,
                                                 v1::GenerateResponse* response) {
  return GenerateUnary(context, "nibble.v1.InferenceService/Chat", &request->request(), /*chat=*/true, response);
}

grpc::ServerWriteReactor<v1::GenerateReply>* InferenceService::ChatStream(grpc::CallbackServerContext* context,
                                                                          const v1::ChatStreamRequest* request) {
  return Stream(context, "nibble.v1.InferenceService/ChatStream", &request->request(), /*chat=*/true);
}

grpc::ServerUnaryReactor* InferenceService::Score(grpc::CallbackServerContext* context, const v1::ScoreRequest* request,
                                                  v1::ScoreResponse* response) {
  const auto start = [this, request, response](UnaryCall* call) {
    if (const absl::Status status = CheckScore(*request); !status.ok()) return call->Done(status);
    WithModel(loads_, request->model(), call, call->call().DeadlineOr(edge_.generate_deadline), [=, this](ModelLoads::Loaded loaded) {
      const absl::Status taken = Encode(TextBytes(*request), [=, this] {
        const absl::Status status = SubmitScore(edge_, loaded, *request, call, response);
        if (!status.ok()) call->Done(status);
      });
      if (!taken.ok()) call->Done(taken);
    });
  };
  return UnaryAsync(edge_, edge_.workers, context, "nibble.v1.InferenceService/Score", start, edge_.generate_deadline);
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request, v1::TokenizeResponse* response) {
  return OnTextWorker(context, "nibble.v1.InferenceService/Tokenize", TextBytes(*request), [=, this](const Call& call) -> absl::Status {
    NIBBLE_RETURN_IF_ERROR(CheckModelName("TokenizeRequest.model", request->model()));
    NIBBLE_ASSIGN_OR_RETURN(const auto model, texts_.Get(request->model()));
    return rpc::Tokenize(*request, *model, BoundsOf(call), response);
  });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  return UnaryOnWorker(edge_, context, "nibble.v1.InferenceService/Detokenize", [=, this](const Call& call) -> absl::Status {
    NIBBLE_RETURN_IF_ERROR(CheckModelName("DetokenizeRequest.model", request->model()));
    NIBBLE_ASSIGN_OR_RETURN(const auto model, texts_.Get(request->model()));
    return rpc::Detokenize(*request, *model, BoundsOf(call), response);
  });
}

grpc::ServerUnaryReactor* InferenceService::RenderTemplate(grpc::CallbackServerContext* context,
                                                           const v1::RenderTemplateRequest* request,
                                                           v1::RenderTemplateResponse* response) {
  return OnTextWorker(context, "nibble.v1.InferenceService/RenderTemplate", TextBytes(*request), [=, this](const Call& call) -> absl::Status {
    NIBBLE_RETURN_IF_ERROR(CheckModelName("RenderTemplateRequest.model", request->model()));
    NIBBLE_ASSIGN_OR_RETURN(const auto model, texts_.Get(request->model()));
    return rpc::RenderTemplate(*request, *model, BoundsOf(call), response);
  });
}

grpc::ServerUnaryReactor* InferenceService::Embed(grpc::CallbackServerContext* context, const v1::EmbedRequest*,
                                                  v1::EmbedResponse*) {
  return UnaryNotBuilt(edge_, context, "nibble.v1.InferenceService/Embed");
}

grpc::ServerUnaryReactor* InferenceService::Abort(grpc::CallbackServerContext* context, const v1::AbortRequest* request,
                                                  v1::AbortResponse* response) {
  return Unary(edge_, context, "nibble.v1.InferenceService/Abort", [&](const Call& call) -> absl::Status {
    if (request->request_ids_size() < 1 || request->request_ids_size() > kMaxAborted) {
      return base::FieldError("request_ids", base::StrCat("has ", request->request_ids_size(), ", wanted 1 to ", kMaxAborted));
    }
    for (const std::string& id : request->request_ids()) {
      if (ids_.Abort(call.principal(), id)) response->add_aborted_request_ids(id);
    }
    return absl::OkStatus();
  });
}

}  // namespace nibble::rpc
