#include "server/kserve/infer_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "server/base/error.h"
#include "tests/server/kserve/infer_message.h"

namespace nibble::kserve {
namespace {

using inference::ModelInferRequest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::AddBool;
using testing_support::InferRequest;

std::string SamplingError(const std::string& sampling) {
  return std::string(ParseInfer(InferRequest("m", "x", sampling), /*may_stream=*/false).status().message());
}

TEST(InferRequestTest, DefaultsAreVllms) {
  const auto call = ParseInfer(InferRequest("m", "x"), /*may_stream=*/true);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->request.model(), "m");
  EXPECT_EQ(call->request.text(), "x");
  EXPECT_EQ(call->request.sampling().temperature(), 1) << "the gRPC API is greedy by default";
  EXPECT_EQ(call->request.stopping().max_tokens(), 16);
  EXPECT_FALSE(call->stream);
  EXPECT_TRUE(call->request.output().echo()) << "without a stream, the text begins with the prompt";
  EXPECT_FALSE(call->request.output().has_logprobs());
}

TEST(InferRequestTest, ReadsNumbersAndTruthValuesThatAreTexts) {
  const auto call = ParseInfer(
      InferRequest("m", "x",
                   R"({"temperature": "0.5", "top_p": "1", "top_k": "-1", "max_tokens": "7", "seed": "-3", "n": "2",
                       "ignore_eos": "True", "skip_special_tokens": "false", "logprobs": "2", "stop": ["a", "b"],
                       "stop_token_ids": [5], "logit_bias": {"4": -1.5}, "min_tokens": null})"),
      /*may_stream=*/true);
  ASSERT_TRUE(call.ok()) << call.status();
  const v1::GenerateRequest& request = call->request;
  EXPECT_EQ(request.sampling().temperature(), 0.5);
  EXPECT_EQ(request.sampling().top_p(), 1);
  EXPECT_EQ(request.sampling().top_k(), 0);
  EXPECT_EQ(request.sampling().seed(), -3);
  EXPECT_EQ(request.sampling().logit_bias().at(4), -1.5);
  EXPECT_EQ(call->n, 2);
  EXPECT_EQ(request.stopping().max_tokens(), 7);
  EXPECT_TRUE(request.stopping().ignore_eos());
  EXPECT_THAT(request.stopping().stop(), ElementsAre("a", "b"));
  EXPECT_THAT(request.stopping().stop_token_ids(), ElementsAre(5));
  EXPECT_FALSE(request.stopping().has_min_tokens());
  EXPECT_TRUE(request.output().include_special_tokens());
  EXPECT_EQ(request.output().logprobs(), 2);
  EXPECT_TRUE(call->has_logprobs);
}

TEST(InferRequestTest, LogprobsAreRequestedWithAlternativesThatShowTheRank) {
  ModelInferRequest request = InferRequest("m", "x", R"({"logprobs": 2})");
  EXPECT_EQ(ParseInfer(request, true)->request.output().logprobs(), 2) << "nobody asked for the tensor";
  AddBool(request, "return_logprobs");
  const auto call = ParseInfer(request, true);
  EXPECT_EQ(call->request.output().logprobs(), 20);
  EXPECT_EQ(call->num_logprobs, 2);
  request = InferRequest("m", "x", R"({"logprobs": -1})");
  AddBool(request, "return_logprobs");
  EXPECT_EQ(ParseInfer(request, true)->request.output().logprobs(), -1) << "its error names the number";
  request = InferRequest("m", "x");
  AddBool(request, "return_cumulative_logprob");
  EXPECT_EQ(ParseInfer(request, true)->request.output().logprobs(), 0);
}

TEST(InferRequestTest, ErrorsNameTheParameterAndWhatItGot) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "sampling_parameters: is an array, wanted an object"},
      {"{", "sampling_parameters: is not JSON: "},
      {R"({"max_token": 3})",
       "sampling_parameters.max_token: is not a field of this request; did you mean max_tokens?"},
      {R"({"temperature": "hot"})", "sampling_parameters.temperature: is a string, wanted a number"},
      {R"({"temperature": []})", "sampling_parameters.temperature: is an array, wanted a number"},
      {R"({"max_tokens": 1.5})", "sampling_parameters.max_tokens: is 1.5, wanted a whole number of 64 bits"},
      {R"({"max_tokens": 3000000000})", "sampling_parameters.max_tokens: is 3000000000, wanted a number of 32 bits"},
      {R"({"n": 17})", "sampling_parameters.n: is 17, wanted 1 to 16"},
      {R"({"n": 0})", "sampling_parameters.n: is 0, wanted 1 to 16"},
      {R"({"stop": 3})", "sampling_parameters.stop: wanted a string or an array of strings"},
      {R"({"stop_token_ids": [-1]})", "sampling_parameters.stop_token_ids: wanted an array of token ids"},
      {R"({"logit_bias": {"x": 1}})", "sampling_parameters.logit_bias: has the key \"x\", wanted a token id"},
      {R"({"use_beam_search": true})",
       "sampling_parameters.use_beam_search: is not supported; wanted no value, null or "},
      {R"({"guided_decoding": {"json": {}}})", "sampling_parameters.guided_decoding: is not supported"},
      {R"({"lora_name": "a"})",
       "sampling_parameters.lora_name: is not supported; wanted the adapter's name as model_name"}};
  for (const auto& [sampling, error] : cases) EXPECT_THAT(SamplingError(sampling), HasSubstr(error)) << sampling;
  EXPECT_EQ(SamplingError("\"" + std::string(64 << 10, 'x') + "\""),
            "sampling_parameters: has 65538 bytes, wanted at most 65536");
  EXPECT_THAT(SamplingError(std::string(20000, '[')), HasSubstr("sampling_parameters: is not JSON: "));
}

TEST(InferRequestTest, ParametersOfTheRequestReplaceAMissingTensor) {
  ModelInferRequest request = InferRequest("m", "x");
  (*request.mutable_parameters())["temperature"].set_string_param("0");
  (*request.mutable_parameters())["max_tokens"].set_int64_param(3);
  (*request.mutable_parameters())["ignore_eos"].set_bool_param(true);
  (*request.mutable_parameters())["top_p"].set_double_param(0.5);
  auto call = ParseInfer(request, /*may_stream=*/true);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->request.sampling().temperature(), 0);
  EXPECT_EQ(call->request.sampling().top_p(), 0.5);
  EXPECT_EQ(call->request.stopping().max_tokens(), 3);
  EXPECT_TRUE(call->request.stopping().ignore_eos());
  EXPECT_EQ(ClientName("sampling.top_p", call->sampling), "parameters.top_p");
  (*request.mutable_parameters())["nonsense"].set_bool_param(true);
  EXPECT_THAT(std::string(ParseInfer(request, true).status().message()),
              HasSubstr("parameters.nonsense: is not a field of this request"));
  // Triton's own example sends both; then the tensor counts.
  testing_support::AddText(request, "sampling_parameters", R"({"max_tokens": 9})");
  call = ParseInfer(request, /*may_stream=*/true);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->request.stopping().max_tokens(), 9);
}

TEST(InferRequestTest, ParametersOfTheProtocolHaveTheirMeaning) {
  ModelInferRequest request = InferRequest("m", "x");
  request.set_id("17");
  (*request.mutable_parameters())["timeout"].set_int64_param(1'500'000);
  (*request.mutable_parameters())["priority"].set_uint64_param(3);
  (*request.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  const auto call = ParseInfer(request, /*may_stream=*/true);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->request.queue_timeout().seconds(), 1);
  EXPECT_EQ(call->request.queue_timeout().nanos(), 500'000'000);
  EXPECT_FALSE(call->request.has_priority()) << "a model has no priority levels";
  EXPECT_TRUE(call->empty_final);
  EXPECT_EQ(call->id, "17");
  EXPECT_EQ(call->request.request_id(), "17");
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"sequence_id", "parameters.sequence_id: is not supported: no model has a state that its requests share"},
      {"triton_other", "parameters.triton_other: is not a parameter of this server"},
      {"timeout", "parameters.timeout: is -1, wanted a number of microseconds, 0 or more"},
      {"triton_enable_empty_final_response", "parameters.triton_enable_empty_final_response: wanted true or false"}};
  for (const auto& [key, error] : refused) {
    ModelInferRequest wrong = InferRequest("m", "x");
    (*wrong.mutable_parameters())[key].set_int64_param(-1);
    EXPECT_EQ(ParseInfer(wrong, true).status().message(), error);
  }
}

TEST(InferRequestTest, StreamsNeedTheMethodOfStreamsAndNoPrompt) {
  ModelInferRequest request = InferRequest("m", "x");
  AddBool(request, "stream");
  EXPECT_EQ(ParseInfer(request, /*may_stream=*/false).status().message(),
            "stream: is true, wanted false: only ModelStreamInfer answers with a stream");
  auto call = ParseInfer(request, /*may_stream=*/true);
  ASSERT_TRUE(call.ok());
  EXPECT_FALSE(call->request.output().echo());
  AddBool(request, "exclude_input_in_output", false);
  EXPECT_EQ(ParseInfer(request, /*may_stream=*/true).status().message(),
            "exclude_input_in_output: is false, wanted true or no such tensor: a stream never repeats the prompt");
  request = InferRequest("m", "x");
  AddBool(request, "exclude_input_in_output");
  EXPECT_FALSE(ParseInfer(request, /*may_stream=*/false)->request.output().echo());
}

TEST(InferRequestTest, RefusesOtherModelsVersionsIdsAndOutputs) {
  ModelInferRequest request = InferRequest("", "x");
  EXPECT_EQ(ParseInfer(request, true).status().message(), "model_name: is empty, wanted a model's name");
  request.set_model_name("m");
  request.set_model_version("2");
  const absl::Status version = ParseInfer(request, true).status();
  EXPECT_TRUE(absl::IsNotFound(version)) << version;
  EXPECT_EQ(base::Reason(version), "MODEL");
  request.set_model_version("1");
  request.set_id(std::string(129, 'x'));
  EXPECT_EQ(ParseInfer(request, true).status().message(), "id: has 129 bytes, wanted at most 128");
  request.set_id("");
  request.add_outputs()->set_name("text_outputs");
  EXPECT_EQ(ParseInfer(request, true).status().message(),
            "text_outputs: is not an output tensor of this model; did you mean text_output?");
  request.mutable_outputs(0)->set_name("text_output");
  EXPECT_TRUE(ParseInfer(request, true).ok());
  (*request.mutable_outputs(0)->mutable_parameters())["classification"].set_int64_param(3);
  EXPECT_EQ(ParseInfer(request, true).status().message(),
            "text_output: is requested as a classification, wanted its elements");
}

TEST(InferRequestTest, FieldsHaveTheNamesOfTheClient) {
  EXPECT_EQ(ClientName("text", kSamplingTensor), "text_input");
  EXPECT_EQ(ClientName("stopping.max_tokens", kSamplingTensor), "sampling_parameters.max_tokens");
  EXPECT_EQ(ClientName("stopping.include_stop", kSamplingTensor), "sampling_parameters.include_stop_str_in_output");
  EXPECT_EQ(ClientName("output.logprobs", kSamplingTensor), "sampling_parameters.logprobs");
  EXPECT_EQ(ClientName("queue_timeout", kSamplingTensor), "parameters.timeout");
  EXPECT_EQ(ClientName("model", kSamplingTensor), "model_name");
  EXPECT_EQ(ClientName("other", kSamplingTensor), "other");
}

}  // namespace
}  // namespace nibble::kserve
