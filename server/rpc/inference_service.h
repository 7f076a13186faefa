#pragma once
#include <cstddef>
#include <functional>

#include "nibble/v1/inference_service.grpc.pb.h"
#include "server/rpc/call.h"
#include "server/rpc/model_loads.h"
#include "server/rpc/request_ids.h"
#include "server/rpc/text_cache.h"

namespace nibble::rpc {

// Thread-safe.
class InferenceService : public v1::InferenceService::CallbackService {
 public:
  InferenceService(Edge& edge, ModelLoads& loads, TextCache& texts) : edge_(edge), loads_(loads), texts_(texts) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext*, const v1::GenerateRequest*,
                                     v1::GenerateResponse*) override;
  grpc::ServerWriteReactor<v1::GenerateReply>* GenerateStream(grpc::CallbackServerContext*,
                                                              const v1::GenerateStreamRequest*) override;
  grpc::ServerUnaryReactor* Chat(grpc::CallbackServerContext*, const v1::ChatRequest*, v1::GenerateResponse*) override;
  grpc::ServerWriteReactor<v1::GenerateReply>* ChatStream(grpc::CallbackServerContext*,
                                                          const v1::ChatStreamRequest*) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext*, const v1::ScoreRequest*, v1::ScoreResponse*) override;
  grpc::ServerWriteReactor<v1::ScoreReply>* ScoreStream(grpc::CallbackServerContext*,
                                                        const v1::ScoreStreamRequest*) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext*, const v1::TokenizeRequest*,
                                     v1::TokenizeResponse*) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext*, const v1::DetokenizeRequest*,
                                       v1::DetokenizeResponse*) override;
  grpc::ServerUnaryReactor* RenderTemplate(grpc::CallbackServerContext*, const v1::RenderTemplateRequest*,
                                           v1::RenderTemplateResponse*) override;
  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext*, const v1::EmbedRequest*, v1::EmbedResponse*) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext*, const v1::AbortRequest*, v1::AbortResponse*) override;

 private:
  grpc::ServerUnaryReactor* GenerateUnary(grpc::CallbackServerContext*, const char* method, const v1::GenerateRequest*,
                                          bool chat, v1::GenerateResponse*);
  grpc::ServerWriteReactor<v1::GenerateReply>* Stream(grpc::CallbackServerContext*, const char* method,
                                                      const v1::GenerateRequest*, bool chat);

  // Runs `work`, which encodes a text of about so many bytes: here where it is small, else on the one thread for large texts, so that
  // they are encoded one at a time and other calls keep their workers. ResourceExhausted (QUEUE_FULL): it does not run.
  absl::Status Encode(std::size_t text_bytes, WorkerPool::Task work);
  // Likewise the body of a call.
  grpc::ServerUnaryReactor* OnTextWorker(grpc::CallbackServerContext*, const char* method, std::size_t text_bytes,
                                         std::function<absl::Status(const Call&)> body);

  Edge& edge_;
  ModelLoads& loads_;
  TextCache& texts_;
  RequestIds ids_;
};

}  // namespace nibble::rpc
