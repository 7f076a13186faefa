#include "server/rpc/inference_service.h"

#include <algorithm>
#include <utility>

#include "server/auth/authority.h"
#include "server/auth/request_owner.h"
#include "server/base/error.h"
#include "server/base/process_memory.h"
#include "server/base/queue_full.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/messages/tool_calls.h"
#include "server/rpc/answer_sink.h"
#include "server/rpc/answer_size.h"
#include "server/rpc/embed.h"
#include "server/rpc/model_name.h"
#include "server/rpc/paced_stream.h"
#include "server/rpc/score.h"
#include "server/rpc/stream_reactor.h"
#include "server/rpc/tokens.h"
#include "server/rpc/unary.h"

namespace nibble::rpc {

namespace {

constexpr std::size_t kMaxRequestIdBytes = 128;
constexpr int kMaxAborted = 1000;
constexpr std::size_t kTokenFrame = 6;      // per token besides its text: a packed int32, a blank from some decoders
constexpr std::size_t kOutputFrame = 2048;  // per output besides ids, text and logprobs: start, finish and Usage

AnswerBounds BoundsOf(const Call& call) {
  return {.cancelled = call.stopped(),
          .max_bytes = call.environment().max_send_bytes,
          .max_text_bytes = call.environment().max_prompt_bytes};
}

// A valid request that the engine does not have yet.
struct ValidatedRequest {
  GenerateOptions options;
  std::string id;
  absl::Duration deadline;
  std::unique_ptr<RequestIds::Entry> entry;
};

absl::StatusOr<std::shared_ptr<ValidatedRequest>> Check(CallEnvironment& environment, RequestIds& ids, const Call& call,
                                                        const v1::GenerateRequest& proto, bool chat) {
  auto validated = std::make_shared<ValidatedRequest>();
  NIBBLE_ASSIGN_OR_RETURN(validated->options, FromProto(proto, chat));
  NIBBLE_RETURN_IF_ERROR(auth::CheckPriority(call.principal(), "priority", validated->options.request.priority));
  if (proto.request_id().size() > kMaxRequestIdBytes) {
    return base::FieldError(
        "request_id", base::StrCat("has ", proto.request_id().size(), " bytes, wanted at most ", kMaxRequestIdBytes));
  }
  validated->id = proto.request_id().empty() ? call.request_id() : proto.request_id();
  // Register before the load, which may take long, so that Abort finds the request during the load too.
  validated->entry =
      std::make_unique<RequestIds::Entry>(ids, validated->id, auth::OwnerOf(call.principal()), call.cancel());
  validated->deadline = call.DeadlineOr(environment.generate_deadline);
  NIBBLE_RETURN_IF_ERROR(call.StillWanted(validated->deadline));
  return validated;
}

// Checks that a unary answer fits one message. For a stream, checks its echo and logprobs, and sets score_chunk so that
// the logprobs of one step fit one message. `instead`: for a unary answer, the method that streams it; nullptr for a
// stream.
absl::Status CheckSize(const CallEnvironment& environment, const serve::Resident& resident, const char* instead,
                       std::size_t echo_bytes, GenerateOptions& options, std::size_t prompt_tokens) {
  const bool has_logprobs = options.logprobs || options.prompt_logprobs;
  if (instead == nullptr) {
    NIBBLE_RETURN_IF_ERROR(
        CheckStreamedEcho(echo_bytes, environment.max_send_bytes, options.request.n, environment.stream_buffer));
    if (!has_logprobs) return absl::OkStatus();
  }
  const auto room =
      std::max<std::int64_t>(0, resident.engine->max_context() - static_cast<std::int64_t>(prompt_tokens));
  const auto max_tokens = static_cast<std::size_t>(std::min(options.request.stopping.max_tokens, room));
  const auto bytes_of_outputs = [&](std::size_t token_bytes) {
    return static_cast<std::size_t>(options.request.n) * (max_tokens * token_bytes + echo_bytes + kOutputFrame);
  };
  // Building the byte table of a large vocabulary takes up to a second. Most answers do not need the table: they
  // fit even if every token adds kMaxBytes bytes, each of which becomes U+FFFD, which has 3 bytes.
  if (!has_logprobs && bytes_of_outputs(kTokenFrame + 3 * text::TokenBytes::kMaxBytes) <= environment.max_send_bytes)
    return absl::OkStatus();
  // Build the byte table here rather than on the engine's thread.
  const text::TokenBytes& tokens = resident.text.tokenizer->token_bytes();
  const std::size_t prompt_token_bytes =
      options.prompt_logprobs ? LogprobBytes(tokens, options.num_prompt_logprobs, /*digest=*/false) : 0;
  const std::size_t token_bytes =
      (options.logprobs ? LogprobBytes(tokens, options.num_logprobs, /*digest=*/false) : 0) + kTokenFrame +
      tokens.longest_text_bytes();
  if (instead == nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(options.request.score_chunk,
                            TokensOfAPiece(std::max(prompt_token_bytes, token_bytes), environment.max_send_bytes));
    return absl::OkStatus();
  }
  return CheckUnaryAnswer(prompt_tokens * prompt_token_bytes + bytes_of_outputs(token_bytes),
                          environment.max_send_bytes, instead);
}

// Encodes the prompt and submits the request to the model's engine; `make_sink` gets the context of the answer. After
// an error Abort no longer finds the request, and the caller of Submit must report the error to the client.
template <typename MakeSink>
absl::Status Submit(CallEnvironment& environment, const Call& call, const v1::GenerateRequest& proto,
                    std::string rendered, ValidatedRequest& validated, std::shared_ptr<const serve::Resident> resident,
                    const char* instead, MakeSink make_sink) {
  auto entry = std::move(validated.entry);
  NIBBLE_RETURN_IF_ERROR(call.StillWanted(validated.deadline));
  GenerateOptions& options = validated.options;
  UseToolFormat(resident->text, options);
  std::string echo;
  NIBBLE_ASSIGN_OR_RETURN(auto prompt, PromptOf(proto, std::move(rendered), resident->text,
                                                {.max_tokens = resident->engine->max_context(),
                                                 .max_bytes = environment.max_prompt_bytes,
                                                 .cancelled = call.stopped()},
                                                options.echo ? &echo : nullptr));
  NIBBLE_RETURN_IF_ERROR(CheckSize(environment, *resident, instead, echo.size(), options, prompt.size()));
  serve::Request request = options.request;
  if (options.constraint.has_value()) {
    request.grammar_field = options.constraint->field;
    request.grammar = std::move(options.grammar);
    if (request.grammar == nullptr) {
      NIBBLE_ASSIGN_OR_RETURN(
          request.grammar, resident->engine->grammars().Compile(options.constraint->source, options.constraint->field));
      NIBBLE_RETURN_IF_ERROR(call.StillWanted(validated.deadline));
    }
  }
  request.prompt = prompt;
  request.prompt_field = InputField(proto);
  request.principal = auth::FairnessKey(call.principal());
  request.cancel = call.cancel();
  request.deadline = validated.deadline;
  request.arrived = call.began();
  // Covers waiting for a slot, not loading.
  if (options.queue_timeout.has_value())
    request.queue_deadline = environment.clock.Monotonic() + *options.queue_timeout;
  serve::Engine& engine = *resident->engine;
  return engine.Submit(std::move(request), make_sink(AnswerContext{.environment = environment,
                                                                   .resident = std::move(resident),
                                                                   .options = std::move(options),
                                                                   .request_id = validated.id,
                                                                   .echo_text = std::move(echo),
                                                                   .prompt = std::move(prompt),
                                                                   .entry = std::move(entry)}));
}

// Adds the constraint of the request's tools. Returns whether the constraint must be compiled first, which may take
// seconds.
bool MustCompile(ValidatedRequest& validated, const v1::GenerateRequest& proto, const serve::Resident& resident) {
  GenerateOptions& options = validated.options;
  if (!options.constraint.has_value()) options.constraint = ToolConstraint(proto, resident.text);
  if (!options.constraint.has_value()) return false;
  options.grammar = resident.engine->grammars().Kept(options.constraint->source);
  return options.grammar == nullptr;
}

// Lets an abort end the wait for a load too.
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
      case v1::GenerateReply::kPromptLogprobs:
        for (v1::TokenLogprob& token : *reply.mutable_prompt_logprobs()->mutable_tokens()) {
          response_->add_prompt_logprobs()->Swap(&token);
        }
        return;
      case v1::GenerateReply::kDelta: {
        v1::GenerateOutput& output = Output(reply.delta().index());
        output.mutable_text()->append(reply.delta().text());
        messages::AddToolCalls(reply.delta(), *output.mutable_tool_calls());
        output.mutable_token_ids()->MergeFrom(reply.delta().token_ids());
        output.mutable_logprobs()->MergeFrom(reply.delta().logprobs());
        return;
      }
      case v1::GenerateReply::kFinish:
        Output(reply.finish().index()).mutable_finish()->Swap(reply.mutable_finish());
        return;
      case v1::GenerateReply::kUsage: response_->mutable_usage()->Swap(reply.mutable_usage()); return;
      default: return;
    }
  }
  void End(const absl::Status& status) override { call_->Done(status); }

  UnaryCall* const call_;
  v1::GenerateResponse* const response_;
};

class StreamSink final : public AnswerSink {
 public:
  StreamSink(AnswerContext context, std::shared_ptr<StreamReactor<v1::GenerateReply>> stream)
      : AnswerSink(std::move(context)), stream_(std::move(stream)) {}

 private:
  // Before the engine calls Ready() again, it may send, for every output, its echo, a delta, held-back text and a
  // finish, then the usage; or, for the prompt, a start and a piece of logprobs. PacedStream::Ready() requires one
  // place more than its argument; the usage takes that place.
  bool Ready() override {
    return stream_.Ready(kMessagesOfAStep * static_cast<std::size_t>(num_outputs()) + num_echo_messages());
  }
  void Emit(v1::GenerateReply& reply) override { stream_.Push(reply); }
  absl::Status Why(const absl::Status& status) const override { return stream_.Why(status); }
  void End(const absl::Status& status) override { stream_.End(status); }

  PacedStream<v1::GenerateReply> stream_;
};

// Runs `begin` on a worker with the stream. Ends the stream if `begin` returns an error.
template <typename Reply, typename Begin>
grpc::ServerWriteReactor<Reply>* StreamOnWorker(CallEnvironment& environment, grpc::CallbackServerContext* context,
                                                const char* method, Begin begin) {
  auto stream = StreamReactor<Reply>::Make(environment, context, method);
  if (stream->ended()) return stream.get();
  RunOnWorker(environment.workers, *stream, [&environment, stream, begin = std::move(begin)] {
    environment.workers.NoteWait(environment.clock.Monotonic() - stream->call().began());
    if (stream->ended()) return;
    if (const absl::Status status = begin(stream); !status.ok()) stream->End(status);
  });
  return stream.get();
}

template <typename Reply>
grpc::ServerWriteReactor<Reply>* EndedStream(CallEnvironment& environment, grpc::CallbackServerContext* context,
                                             const char* method, const absl::Status& status) {
  auto stream = StreamReactor<Reply>::Make(environment, context, method);
  if (!stream->ended()) stream->End(status);
  return stream.get();
}

}  // namespace

void InferenceService::OnTextThread(const Call& call, absl::Duration deadline, std::function<absl::Status()> work,
                                    Failed failed) {
  const std::string principal = auth::FairnessKey(call.principal());
  const auto place = large_texts_.Take(principal);
  if (!place.ok()) {
    return failed(base::TooManyOfPrincipal("large texts waiting or being encoded", kMaxLargeTextsOfPrincipal,
                                           environment_.text_workers.last_wait()));
  }
  auto run = [this, &call, deadline, place, work = std::move(work), failed,
              came = environment_.clock.Monotonic()]() mutable {
    environment_.text_workers.NoteWait(environment_.clock.Monotonic() - came);
    absl::Status status = call.StillWanted(deadline);
    if (status.ok()) status = work();
    if (!status.ok()) failed(status);
    work = nullptr;  // frees the text that it holds
    failed = nullptr;
    base::ReturnFreeMemory();  // the allocator would keep the memory of a large text
  };
  if (!environment_.text_workers.TryRun(std::move(run), principal))
    failed(base::TooManyWait(environment_.text_workers, principal));
}

template <typename Request>
void InferenceService::Encode(const Call& call, absl::Duration deadline, const Request& request,
                              const model::TextAssets& assets, Encoding encode, const Failed& failed, bool slow) {
  if (slow || TextBytes(request) > text::kLargeTextBytes) {
    const auto render_and_encode = [this, &request, &assets, encode = std::move(encode)]() -> absl::Status {
      NIBBLE_ASSIGN_OR_RETURN(std::string rendered, Rendered(request, assets, environment_.max_prompt_bytes));
      return encode(std::move(rendered));
    };
    return OnTextThread(call, deadline, render_and_encode, failed);
  }
  auto rendered = Rendered(request, assets, environment_.max_prompt_bytes);
  if (!rendered.ok()) return failed(rendered.status());
  if (rendered->size() > text::kLargeTextBytes) {  // the template added much text
    const auto text = std::make_shared<std::string>(*std::move(rendered));
    return OnTextThread(
        call, deadline, [text, encode = std::move(encode)] { return encode(std::move(*text)); }, failed);
  }
  if (const absl::Status status = encode(*std::move(rendered)); !status.ok()) failed(status);
}

template <typename Request, typename Body>
grpc::ServerUnaryReactor* InferenceService::WithText(grpc::CallbackServerContext* context, const char* method,
                                                     const char* name_field, const Request* request, Body body) {
  const auto start = [=, this](UnaryCall* call) {
    const auto find = [&]() -> absl::StatusOr<std::shared_ptr<const registry::ModelText>> {
      NIBBLE_RETURN_IF_ERROR(CheckModelName(name_field, request->model()));
      return texts_.Get(request->model());
    };
    const auto model = find();
    if (!model.ok()) return call->Done(model.status());
    const auto encode = [call, body, model = *model](std::string rendered) {
      absl::Status status = body(call->call(), *model, std::move(rendered));
      if (status.ok()) call->Done(status);
      return status;
    };
    Encode(call->call(), call->call().DeadlineOr(environment_.default_deadline), *request, (*model)->assets, encode,
           [call](const absl::Status& status) { call->Done(status); });
  };
  return UnaryAsync(environment_, environment_.workers, context, method, start, environment_.default_deadline);
}

grpc::ServerUnaryReactor* InferenceService::GenerateUnary(grpc::CallbackServerContext* context, const char* method,
                                                          const v1::GenerateRequest* request, bool chat,
                                                          v1::GenerateResponse* response) {
  if (absl::Status status = CheckInputSize(*request, environment_.max_prompt_bytes); !status.ok()) {
    return Unary(environment_, context, method, [&status] { return status; });
  }
  const auto start = [this, request, chat, response](UnaryCall* call) {
    const auto checked = Check(environment_, ids_, call->call(), *request, chat);
    if (!checked.ok()) return call->Done(checked.status());
    const std::shared_ptr<ValidatedRequest>& validated = *checked;
    const auto watch = [&](const std::shared_ptr<LoadWait>& wait) {
      call->OnCancelled([wait] { wait->Cancelled(); });
      EndOnAbort(*validated->entry, wait);
    };
    const auto failed = [validated, call](const absl::Status& status) {
      validated->entry = nullptr;  // Abort no longer finds the request
      call->Done(status);
    };
    WithModel(loads_, request->model(), call->call(), validated->deadline, watch,
              [=, this](serve::ModelLoads::Loaded loaded) {
                if (!loaded.ok()) return failed(loaded.status());
                const auto submit = [=, this, resident = *loaded](std::string rendered) {
                  const char* instead = chat ? "ChatStream" : "GenerateStream";
                  return Submit(environment_, call->call(), *request, std::move(rendered), *validated, resident,
                                instead, [&](AnswerContext answer) {
                                  return std::make_shared<UnarySink>(std::move(answer), call, response);
                                });
                };
                Encode(call->call(), validated->deadline, *request, (*loaded)->text, submit, failed,
                       MustCompile(*validated, *request, **loaded));
              });
  };
  return UnaryAsync(environment_, environment_.workers, context, method, start, environment_.generate_deadline);
}

grpc::ServerWriteReactor<v1::GenerateReply>* InferenceService::Stream(grpc::CallbackServerContext* context,
                                                                      const char* method,
                                                                      const v1::GenerateRequest* request, bool chat) {
  if (const absl::Status status = CheckInputSize(*request, environment_.max_prompt_bytes); !status.ok()) {
    return EndedStream<v1::GenerateReply>(environment_, context, method, status);
  }
  // gRPC keeps the request only as long as the call, but a worker may start later.
  const auto copy = std::make_shared<const v1::GenerateRequest>(*request);
  const auto begin = [this, chat,
                      copy](const std::shared_ptr<StreamReactor<v1::GenerateReply>>& stream) -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(const std::shared_ptr<ValidatedRequest> validated,
                            Check(environment_, ids_, stream->call(), *copy, chat));
    const auto watch = [&](const std::shared_ptr<LoadWait>& wait) {
      stream->OnSpace([wait] { wait->Cancelled(); });  // nothing is sent during the load: only a cancel calls this
      EndOnAbort(*validated->entry, wait);
    };
    const auto failed = [validated, stream](const absl::Status& status) {
      validated->entry = nullptr;  // Abort no longer finds the request
      stream->End(status);
    };
    WithModel(loads_, copy->model(), stream->call(), validated->deadline, watch,
              [=, this](serve::ModelLoads::Loaded loaded) {
                stream->OnSpace(nullptr);
                if (!loaded.ok()) return failed(loaded.status());
                const auto submit = [=, this, resident = *loaded](std::string rendered) {
                  const auto make_sink = [&](AnswerContext answer) {
                    return std::make_shared<StreamSink>(std::move(answer), stream);
                  };
                  return Submit(environment_, stream->call(), *copy, std::move(rendered), *validated, resident,
                                /*instead=*/nullptr, make_sink);
                };
                Encode(stream->call(), validated->deadline, *copy, (*loaded)->text, submit, failed,
                       MustCompile(*validated, *copy, **loaded));
              });
    return absl::OkStatus();
  };
  return StreamOnWorker<v1::GenerateReply>(environment_, context, method, begin);
}

grpc::ServerUnaryReactor* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                     const v1::GenerateRequest* request,
                                                     v1::GenerateResponse* response) {
  return GenerateUnary(context, "nibble.v1.InferenceService/Generate", request, /*chat=*/false, response);
}

grpc::ServerWriteReactor<v1::GenerateReply>* InferenceService::GenerateStream(
    grpc::CallbackServerContext* context, const v1::GenerateStreamRequest* request) {
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
  constexpr const char* kMethod = "nibble.v1.InferenceService/Score";
  if (absl::Status status = CheckInputSize(*request, environment_.max_prompt_bytes); !status.ok()) {
    return Unary(environment_, context, kMethod, [&status] { return status; });
  }
  const auto start = [this, request, response](UnaryCall* call) {
    if (const absl::Status status = CheckScore(*request); !status.ok()) return call->Done(status);
    const absl::Duration deadline = call->call().DeadlineOr(environment_.generate_deadline);
    WithModel(loads_, request->model(), call, deadline, [=, this](serve::ModelLoads::Loaded loaded) {
      if (!loaded.ok()) return call->Done(loaded.status());
      const auto submit = [=, this, resident = *loaded](const std::string& rendered) {
        return SubmitScore(environment_, resident, *request, rendered, call, response);
      };
      Encode(call->call(), deadline, *request, (*loaded)->text, submit,
             [call](const absl::Status& status) { call->Done(status); });
    });
  };
  return UnaryAsync(environment_, environment_.workers, context, kMethod, start, environment_.generate_deadline);
}

grpc::ServerWriteReactor<v1::ScoreReply>* InferenceService::ScoreStream(grpc::CallbackServerContext* context,
                                                                        const v1::ScoreStreamRequest* request) {
  constexpr const char* kMethod = "nibble.v1.InferenceService/ScoreStream";
  if (const absl::Status status = CheckInputSize(request->request(), environment_.max_prompt_bytes); !status.ok()) {
    return EndedStream<v1::ScoreReply>(environment_, context, kMethod, status);
  }
  const auto copy = std::make_shared<const v1::ScoreRequest>(request->request());
  const auto begin = [this, copy](const std::shared_ptr<StreamReactor<v1::ScoreReply>>& stream) -> absl::Status {
    NIBBLE_RETURN_IF_ERROR(CheckScore(*copy));
    const auto watch = [&](const std::shared_ptr<LoadWait>& wait) { stream->OnSpace([wait] { wait->Cancelled(); }); };
    const absl::Duration deadline = stream->call().DeadlineOr(environment_.generate_deadline);
    WithModel(loads_, copy->model(), stream->call(), deadline, watch, [=, this](serve::ModelLoads::Loaded loaded) {
      stream->OnSpace(nullptr);
      if (!loaded.ok()) return stream->End(loaded.status());
      const auto submit = [=, this, resident = *loaded](const std::string& rendered) {
        return SubmitScore(environment_, resident, *copy, rendered, stream);
      };
      Encode(stream->call(), deadline, *copy, (*loaded)->text, submit,
             [stream](const absl::Status& status) { stream->End(status); });
    });
    return absl::OkStatus();
  };
  return StreamOnWorker<v1::ScoreReply>(environment_, context, kMethod, begin);
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  const auto body = [=](const Call& call, const registry::ModelText& model, const std::string& rendered) {
    return rpc::Tokenize(*request, rendered, model, BoundsOf(call), response);
  };
  return WithText(context, "nibble.v1.InferenceService/Tokenize", "TokenizeRequest.model", request, body);
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  return UnaryOnWorker(environment_, context, "nibble.v1.InferenceService/Detokenize",
                       [=, this](const Call& call) -> absl::Status {
                         NIBBLE_RETURN_IF_ERROR(CheckModelName("DetokenizeRequest.model", request->model()));
                         NIBBLE_ASSIGN_OR_RETURN(const auto model, texts_.Get(request->model()));
                         return rpc::Detokenize(*request, *model, BoundsOf(call), response);
                       });
}

grpc::ServerUnaryReactor* InferenceService::RenderTemplate(grpc::CallbackServerContext* context,
                                                           const v1::RenderTemplateRequest* request,
                                                           v1::RenderTemplateResponse* response) {
  const auto body = [response](const Call& call, const registry::ModelText& model, std::string rendered) {
    return rpc::RenderTemplate(std::move(rendered), model, BoundsOf(call), response);
  };
  return WithText(context, "nibble.v1.InferenceService/RenderTemplate", "RenderTemplateRequest.model", request, body);
}

grpc::ServerUnaryReactor* InferenceService::GetTokenizerConfig(grpc::CallbackServerContext* context,
                                                               const v1::GetTokenizerConfigRequest* request,
                                                               v1::GetTokenizerConfigResponse* response) {
  return UnaryOnWorker(environment_, context, "nibble.v1.InferenceService/GetTokenizerConfig",
                       [=, this](const Call& call) -> absl::Status {
                         NIBBLE_RETURN_IF_ERROR(CheckModelName("GetTokenizerConfigRequest.model", request->model()));
                         NIBBLE_ASSIGN_OR_RETURN(const auto model, texts_.Get(request->model()));
                         return rpc::GetTokenizerConfig(*model, BoundsOf(call), response);
                       });
}

grpc::ServerUnaryReactor* InferenceService::Embed(grpc::CallbackServerContext* context, const v1::EmbedRequest* request,
                                                  v1::EmbedResponse* response) {
  const auto start = [this, request, response](UnaryCall* call) {
    if (const absl::Status status = CheckEmbed(*request, environment_.max_prompt_bytes); !status.ok())
      return call->Done(status);
    const absl::Duration deadline = call->call().DeadlineOr(environment_.generate_deadline);
    WithModel(loads_, request->model(), call, deadline, [=, this](serve::ModelLoads::Loaded loaded) {
      if (!loaded.ok()) return call->Done(loaded.status());
      const auto submit = [=, this, resident = *loaded] {
        return SubmitEmbed(environment_, resident, *request, deadline, call, response);
      };
      const auto failed = [call](const absl::Status& status) { call->Done(status); };
      if (TextBytes(*request) > text::kLargeTextBytes) return OnTextThread(call->call(), deadline, submit, failed);
      if (const absl::Status status = submit(); !status.ok()) failed(status);
    });
  };
  return UnaryAsync(environment_, environment_.workers, context, "nibble.v1.InferenceService/Embed", start,
                    environment_.generate_deadline);
}

grpc::ServerUnaryReactor* InferenceService::Abort(grpc::CallbackServerContext* context, const v1::AbortRequest* request,
                                                  v1::AbortResponse* response) {
  return Unary(environment_, context, "nibble.v1.InferenceService/Abort", [&](const Call& call) -> absl::Status {
    if (request->request_ids_size() < 1 || request->request_ids_size() > kMaxAborted) {
      return base::FieldError("request_ids",
                              base::StrCat("has ", request->request_ids_size(), ", wanted 1 to ", kMaxAborted));
    }
    for (const std::string& id : request->request_ids()) {
      if (ids_.Abort(call.principal(), id)) response->add_aborted_request_ids(id);
    }
    return absl::OkStatus();
  });
}

}  // namespace nibble::rpc
