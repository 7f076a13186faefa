#pragma once
#include <functional>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "nibble/v1/inference_service.grpc.pb.h"
#include "server/base/stream_slots.h"
#include "server/model/text_assets.h"
#include "server/registry/text_cache.h"
#include "server/rpc/call.h"
#include "server/rpc/load_wait.h"
#include "server/rpc/request_ids.h"

namespace nibble::rpc {

// Thread-safe.
class InferenceService : public v1::InferenceService::CallbackService {
 public:
  static constexpr int kMaxLargeTextsOfPrincipal = 16;  // CallEnvironment::text_workers lets 64 wait in all

  InferenceService(CallEnvironment& environment, serve::ModelLoads& loads, registry::TextCache& texts)
      : environment_(environment), loads_(loads), texts_(texts) {}

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
  grpc::ServerUnaryReactor* GetTokenizerConfig(grpc::CallbackServerContext*, const v1::GetTokenizerConfigRequest*,
                                               v1::GetTokenizerConfigResponse*) override;
  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext*, const v1::EmbedRequest*, v1::EmbedResponse*) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext*, const v1::AbortRequest*, v1::AbortResponse*) override;

 private:
  grpc::ServerUnaryReactor* GenerateUnary(grpc::CallbackServerContext*, const char* method, const v1::GenerateRequest*,
                                          bool chat, v1::GenerateResponse*);
  grpc::ServerWriteReactor<v1::GenerateReply>* Stream(grpc::CallbackServerContext*, const char* method,
                                                      const v1::GenerateRequest*, bool chat);

  // Encodes the text of a request. `rendered`: the result of Rendered (inference_input.h).
  using Encoding = std::function<absl::Status(std::string rendered)>;
  using Failed = std::function<void(const absl::Status&)>;

  // Renders the request's chat, if it has one, and runs `encode`: in place if the text is small and `encode` is not
  // `slow`, otherwise on the one thread for large texts, so that they are encoded one at a time and other calls keep
  // their workers. The first error
  // goes to `failed`: from Render, from `encode`, ResourceExhausted (QUEUE_FULL), or from Call::StillWanted when the
  // text's turn comes. The referenced objects must live until `encode` or `failed` has run.
  template <typename Request>
  void Encode(const Call& call, absl::Duration deadline, const Request& request, const model::TextAssets& assets,
              Encoding encode, const Failed& failed, bool slow = false);
  void OnTextThread(const Call& call, absl::Duration deadline, std::function<absl::Status()> work, Failed failed);
  // For a method that needs a model's tokenizer but not its weights: runs body(call, model, rendered).
  template <typename Request, typename Body>
  grpc::ServerUnaryReactor* WithText(grpc::CallbackServerContext*, const char* method, const char* name_field,
                                     const Request* request, Body body);

  CallEnvironment& environment_;
  serve::ModelLoads& loads_;
  registry::TextCache& texts_;
  RequestIds ids_;
  // Large texts that wait or are being encoded. Limited per principal only.
  base::StreamSlots large_texts_{"", std::numeric_limits<int>::max(), "", kMaxLargeTextsOfPrincipal, "QUEUE_FULL"};
};

}  // namespace nibble::rpc
