// The answer to an InferCall as tensors.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "inference/grpc_service.pb.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/kserve/infer_request.h"

namespace nibble::kserve {

// Thread-compatible.
class InferAnswer {
 public:
  // `call` must outlive this object.
  explicit InferAnswer(const InferCall& call);

  // Takes the next reply of a stream. Returns a response; nullopt: there is none yet. Tokens without a text, and the
  // last token that max_tokens allows, wait for the next response. So the last response usually has a token and the
  // finish reason, as in vLLM's backend.
  std::optional<inference::ModelInferResponse> Take(const v1::GenerateReply& reply);
  // The last response with tensors of a stream: what waits, and how the outputs ended.
  inference::ModelInferResponse Ended();
  // The only response of a call that is not a stream.
  inference::ModelInferResponse Whole(const v1::GenerateResponse& response);
  // A response without tensors.
  inference::ModelInferResponse Empty() const;

  // Known after the last reply.
  absl::Duration queued() const { return queued_; }
  absl::Duration computed() const { return computed_; }

 private:
  // What a response says about one output.
  struct Piece {
    std::string text;
    std::string logprobs;  // JSON objects, each after a comma
    std::uint32_t num_tokens = 0;
  };
  struct Output {
    std::int64_t num_tokens = 0;
    double cumulative_logprob = 0;
    std::string finish_reason = "None";  // as vLLM's backend spells the reason of an output that has not ended
  };

  // Takes all pieces.
  inference::ModelInferResponse Response();
  std::optional<inference::ModelInferResponse> TakeDelta(const v1::GenerateDelta& delta);
  template <typename Logprobs>
  void AddLogprobs(const Logprobs& tokens, Output& output, Piece& piece) const;
  void TakeUsage(const v1::Usage& usage);

  const InferCall& call_;
  const std::int64_t max_tokens_;
  std::vector<Output> outputs_;
  std::vector<Piece> pieces_;  // of each output, since the last response
  std::uint32_t num_input_tokens_ = 0;
  absl::Duration queued_;
  absl::Duration computed_;
};

// Sets the parameter triton_final_response.
void SetFinal(inference::ModelInferResponse& response, bool final);

}  // namespace nibble::kserve
