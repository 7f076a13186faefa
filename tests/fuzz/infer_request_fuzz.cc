// F13 (docs/faults.md): the bytes of an inference.ModelInferRequest. An accepted request becomes a request of the gRPC
// API that a message can carry, and its answer has a tensor for each output that was asked for.
#include <algorithm>
#include <string>

#include "server/base/error.h"
#include "server/base/utf8.h"
#include "server/kserve/infer_answer.h"
#include "server/kserve/infer_request.h"
#include "tests/fuzz/fuzz.h"

using nibble::fuzz::Expect;
using nibble::fuzz::ExpectClean;
namespace base = nibble::base;
namespace kserve = nibble::kserve;
namespace v1 = nibble::v1;

namespace {

void FuzzAnswer(const kserve::InferCall& call) {
  kserve::InferAnswer answer(call);
  v1::GenerateReply reply;
  reply.mutable_delta()->set_index(call.n - 1);
  reply.mutable_delta()->set_text("a");
  reply.mutable_delta()->add_token_ids(1);
  answer.Take(reply);
  const auto response = answer.Ended();
  Expect(response.outputs_size() == response.raw_output_contents_size(), "every tensor has contents");
  for (const auto& output : response.outputs()) {
    Expect(call.outputs.empty() ||
               std::find(call.outputs.begin(), call.outputs.end(), output.name()) != call.outputs.end(),
           "only requested outputs are returned");
    Expect(output.shape_size() == 1 && output.shape(0) == (output.name() == "num_input_tokens" ? 1 : call.n),
           "a tensor has an element for each output");
  }
}

void Fuzz(const inference::ModelInferRequest& request, bool may_stream, std::string_view input) {
  const auto call = kserve::ParseInfer(request, may_stream);
  if (!call.ok()) {
    Expect(absl::IsInvalidArgument(call.status()) || absl::IsNotFound(call.status()) ||
               absl::IsUnimplemented(call.status()),
           "a refusal is the caller's fault");
    Expect(!base::Reason(call.status()).empty(), "a refusal has a reason");
    ExpectClean(call.status(), input);
    return;
  }
  Expect(may_stream || !call->stream, "only a stream answers with a stream");
  Expect(base::IsValidUtf8(call->request.text()), "the prompt is UTF-8");
  Expect(call->n >= 1 && call->n <= 16, "there are 1 to 16 outputs");
  v1::GenerateRequest again;
  Expect(again.ParseFromString(call->request.SerializeAsString()), "the request can be sent");
  FuzzAnswer(*call);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = nibble::fuzz::Text(data, size);
  inference::ModelInferRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return 0;
  Fuzz(request, /*may_stream=*/true, input);
  Fuzz(request, /*may_stream=*/false, input);
  return 0;
}
