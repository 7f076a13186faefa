// Inference requests, translated to the gRPC API.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/grpc_service.pb.h"
#include "nibble/v1/inference_service.pb.h"

namespace nibble::kserve {

inline constexpr char kModelVersion[] = "1";  // of every model
inline constexpr char kSamplingTensor[] = "sampling_parameters";

struct InferCall {
  v1::GenerateRequest request;
  std::string id;
  bool stream = false;               // a response for each step, instead of one
  int n = 1;                         // outputs
  std::vector<std::string> outputs;  // names of the tensors to return; empty: all
  bool finish_reason = false;
  bool cumulative_logprob = false;
  bool logprobs = false;
  bool num_input_tokens = false;
  bool num_output_tokens = false;
  bool has_logprobs = false;               // the sampling parameters ask for logprobs
  int num_logprobs = 0;                    // alternatives of each token in them; the request may ask for more
  bool empty_final = false;                // the last response of a stream has no tensors
  std::string sampling = kSamplingTensor;  // where the sampling parameters were, for messages
};

// `may_stream`: false for ModelInfer. Errors: InvalidArgument (FIELD_VIOLATION) names the tensor or parameter; NotFound
// (MODEL) for another version; Unimplemented for shared memory.
absl::StatusOr<InferCall> ParseInfer(const inference::ModelInferRequest& request, bool may_stream);

// Checks the version of a model in a request; `field` is its name there.
absl::Status CheckVersion(std::string_view field, std::string_view model, std::string_view version);

// The client's name of a field of GenerateRequest: "sampling.top_p" -> "sampling_parameters.top_p".
std::string ClientName(std::string_view field, std::string_view sampling);

}  // namespace nibble::kserve
