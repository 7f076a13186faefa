// F15 (docs/faults.md): the JSON body, or the query, of a request of OpenAI's API. An accepted body becomes requests of
// the gRPC API that messages can carry. A refusal names a field and is an error in OpenAI's form.
#include <string>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/openai/api_error.h"
#include "server/openai/embeddings.h"
#include "server/openai/fine_tuning_request.h"
#include "server/openai/generate_request.h"
#include "server/openai/query_fields.h"
#include "tests/fuzz/fuzz.h"

using nibble::fuzz::Expect;
using nibble::fuzz::ExpectClean;
namespace base = nibble::base;
namespace openai = nibble::openai;
namespace v1 = nibble::v1;

namespace {

// Returns whether the request was accepted.
bool Check(const absl::Status& status, std::string_view input) {
  if (status.ok()) return true;
  Expect(absl::IsInvalidArgument(status), "a refusal is the caller's fault");
  Expect(base::Reason(status) == "FIELD_VIOLATION", "a refusal is about a field");
  ExpectClean(status, input);
  const nibble::http::Reply reply = openai::ToReply(openai::FromStatus(status));
  Expect(reply.status == 400, "a refusal is a 400");
  const auto body = base::ParseJson(reply.body);
  Expect(body.ok() && body->contains("error") && body->at("error").at("message").is_string(),
         "a refusal is an error of OpenAI's API");
  return false;
}

template <typename Message>
void CheckMessage(const Message& message) {
  Message again;
  Expect(again.ParseFromString(message.SerializeAsString()), "the request can be sent");
}

void CheckGenerate(const absl::StatusOr<openai::GenerateCall>& call, std::string_view input) {
  if (!Check(call.status(), input)) return;
  Expect(!call->model.empty(), "a model is named");
  Expect(call->n >= 1 && call->n <= 16, "there are 1 to 16 choices");
  Expect(!call->prompts.empty() && call->prompts.size() <= openai::kMaxPrompts, "there are 1 to 2048 prompts");
  Expect(call->stream || !call->include_usage, "only a stream has a chunk of usage");
  for (const v1::GenerateRequest* request : {&call->prompts.front(), &call->prompts.back()}) {
    Expect(request->stopping().max_tokens() > 0, "at least one token may be generated");
    Expect(call->chat == request->has_chat(), "a chat has messages, and only a chat");
    CheckMessage(*request);
  }
}

void CheckEmbeddings(const base::Json& body, std::string_view input) {
  const auto call = openai::ParseEmbeddings(body);
  if (!Check(call.status(), input)) return;
  CheckMessage(call->request);
  v1::EmbedResponse response;
  v1::Embedding& embedding = *response.add_embeddings();
  for (const float value : {0.5F, -1e30F}) embedding.add_values(value);
  const auto answer = base::ParseJson(openai::EmbeddingsJson(*call, response));
  Expect(answer.ok() && answer->at("data").at(0).at("embedding").is_string() == call->base64, "the answer is JSON");
}

void CheckFineTuning(const base::Json& body, const std::string& key, std::string_view input) {
  const auto call = openai::ParseFineTuningJob(body, key);
  if (!Check(call.status(), input)) return;
  const v1::JobSpec& spec = call->request.spec();
  Expect(!spec.base_model().empty() && !spec.train_dataset().empty(), "model and training file are named");
  Expect(spec.method_case() != v1::JobSpec::METHOD_NOT_SET, "the job has a method");
  Expect(call->request.request_id() == key, "the key of the header is that of the request");
  CheckMessage(call->request);
  for (const char* field : {"base_model", "run.epochs", "run.max_steps", "labels[\"a\"]", "publish.output_model"})
    Expect(!call->ClientField(field).empty(), "each field has a name for the client");
}

void CheckQuery(std::string_view input) {
  openai::QueryFields query(input);
  const auto limit = query.Int("limit", 1, 100);
  Expect(!limit.has_value() || (*limit >= 1 && *limit <= 100), "a number is in its range");
  query.Text("after");
  query.Map("metadata");
  Check(query.Finish(), input);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = nibble::fuzz::Text(data, size);
  CheckQuery(input);
  const auto body = base::ParseJson(input);
  if (!body.ok()) return 0;
  CheckGenerate(openai::ParseCompletion(*body), input);
  CheckGenerate(openai::ParseChat(*body), input);
  CheckEmbeddings(*body, input);
  CheckFineTuning(*body, "", input);
  CheckFineTuning(*body, "key", input);
  return 0;
}
