#include "server/kserve/tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "server/base/error.h"
#include "tests/server/kserve/infer_message.h"

namespace nibble::kserve {
namespace {

using inference::ModelInferRequest;
using testing_support::AddBool;
using testing_support::AddTensor;
using testing_support::AddText;
using testing_support::InferRequest;
using testing_support::LengthBefore;
using testing_support::Raw;

std::string ErrorOf(const ModelInferRequest& request) {
  return std::string(InputTensors::Read(request).status().message());
}

TEST(InputTensorsTest, ReadsRawContents) {
  ModelInferRequest request = InferRequest("m", "h\xC3\xA9llo");
  AddBool(request, "stream");
  AddBool(request, "return_logprobs", false);
  const auto tensors = InputTensors::Read(request);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->Text("text_input"), "h\xC3\xA9llo");
  EXPECT_EQ(tensors->Text("sampling_parameters"), std::nullopt);
  EXPECT_TRUE(tensors->Bool("stream"));
  EXPECT_EQ(tensors->GivenBool("return_logprobs"), false);
  EXPECT_EQ(tensors->GivenBool("exclude_input_in_output"), std::nullopt);
}

TEST(InputTensorsTest, ReadsTypedContents) {
  ModelInferRequest request;
  AddTensor(request, "text_input", "BYTES", {1}).mutable_contents()->add_bytes_contents("");
  AddTensor(request, "stream", "BOOL", {1}).mutable_contents()->add_bool_contents(true);
  const auto tensors = InputTensors::Read(request);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->Text("text_input"), "");
  EXPECT_TRUE(tensors->Bool("stream"));
}

TEST(InputTensorsTest, NamesTheTensorWithAWrongForm) {
  const std::vector<std::pair<std::function<void(ModelInferRequest&)>, std::string>> cases = {
      {[](auto& r) {
         r.clear_inputs();
         r.clear_raw_input_contents();
       },
       "text_input: is missing, wanted a tensor of type BYTES"},
      {[](auto& r) { AddText(r, "text_inputs", "x"); },
       "text_inputs: is not an input tensor of this model; did you mean text_input?"},
      {[](auto& r) { AddText(r, "text_input", "x"); }, "text_input: is in the request twice, wanted it once"},
      {[](auto& r) { r.mutable_inputs(0)->set_datatype("INT32"); },
       "text_input: has the datatype \"INT32\", wanted BYTES"},
      {[](auto& r) { r.mutable_inputs(0)->set_shape(0, 2); }, "text_input: has the shape [2], wanted [1]"},
      {[](auto& r) { r.mutable_inputs(0)->set_shape(0, -1); }, "text_input: has the shape [-1], wanted [1]"},
      {[](auto& r) { r.mutable_inputs(0)->add_shape(1); }, "text_input: has the shape [1, 1], wanted [1]"},
      {[](auto& r) { r.mutable_inputs(0)->clear_shape(); }, "text_input: has the shape [], wanted [1]"},
      {[](auto& r) {
         for (int i = 0; i < 1000; ++i) r.mutable_inputs(0)->add_shape(INT64_MAX);
       },
       "text_input: has the shape [1, 9223372036854775807, 9223372036854775807, 9223372036854775807, "
       "9223372036854775807, 9223372036854775807, 9223372036854775807, 9223372036854775807, ...], wanted [1]"},
      {[](auto& r) { r.mutable_inputs(0)->mutable_contents()->add_bytes_contents("x"); },
       "text_input: has both contents and raw contents, wanted one of them"},
      {[](auto& r) { AddTensor(r, "stream", "BOOL", {1}); },
       "raw_input_contents: has 1 elements for 2 tensors, wanted one for each"},
      {[](auto& r) { r.add_raw_input_contents("x"); },
       "raw_input_contents: has 2 elements for 1 tensors, wanted one for each"}};
  for (const auto& [change, error] : cases) {
    ModelInferRequest request = InferRequest("m", "x");
    change(request);
    EXPECT_EQ(ErrorOf(request), error);
    EXPECT_EQ(base::Reason(InputTensors::Read(request).status()), "FIELD_VIOLATION");
  }
}

TEST(InputTensorsTest, RefusesDamagedElements) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "text_input: has 0 bytes of raw contents, wanted at least 4, the length of its element"},
      {"abc", "text_input: has 3 bytes of raw contents, wanted at least 4, the length of its element"},
      {LengthBefore(5, "four"),
       "text_input: has an element whose length is 5, followed by 4 bytes; wanted one element with all of them"},
      {LengthBefore(0xFFFFFFFF, "x"),
       "text_input: has an element whose length is 4294967295, followed by 1 bytes; wanted one element with all of "
       "them"},
      {Raw("one") + Raw("two"),
       "text_input: has an element whose length is 3, followed by 10 bytes; wanted one element with all of them"},
      {Raw("\xFF"), "text_input: has an element that is not UTF-8"}};
  for (const auto& [raw, error] : cases) {
    ModelInferRequest request = InferRequest("m", "");
    request.set_raw_input_contents(0, raw);
    EXPECT_EQ(ErrorOf(request), error);
  }
  ModelInferRequest request = InferRequest("m", "");
  AddBool(request, "stream");
  request.set_raw_input_contents(1, std::string("\2"));
  EXPECT_EQ(ErrorOf(request), "stream: has the byte 2, wanted 0 or 1");
  request.set_raw_input_contents(1, std::string(2, '\0'));
  EXPECT_EQ(ErrorOf(request), "stream: has 2 bytes of raw contents, wanted 1");
}

TEST(InputTensorsTest, RefusesTypedContentsOfAnotherTypeOrNumber) {
  ModelInferRequest request;
  auto* contents = AddTensor(request, "text_input", "BYTES", {1}).mutable_contents();
  EXPECT_EQ(ErrorOf(request),
            "text_input: has 0 elements in bytes_contents and 0 in other fields of its contents, wanted one in "
            "bytes_contents");
  contents->add_int_contents(1);
  EXPECT_EQ(ErrorOf(request),
            "text_input: has 0 elements in bytes_contents and 1 in other fields of its contents, wanted one in "
            "bytes_contents");
  contents->clear_int_contents();
  contents->add_bytes_contents("a");
  contents->add_bytes_contents("b");
  EXPECT_EQ(ErrorOf(request),
            "text_input: has 2 elements in bytes_contents and 0 in other fields of its contents, wanted one in "
            "bytes_contents");
}

TEST(InputTensorsTest, RefusesSharedMemory) {
  ModelInferRequest request = InferRequest("m", "x");
  (*request.mutable_inputs(0)->mutable_parameters())["shared_memory_region"].set_string_param("region");
  const absl::Status status = InputTensors::Read(request).status();
  EXPECT_TRUE(absl::IsUnimplemented(status));
  EXPECT_EQ(status.message(), "text_input: is in shared memory, wanted its elements in the message");
}

TEST(OutputTensorsTest, WritesLengthsBytesAndNumbers) {
  inference::ModelInferResponse response;
  const std::vector<std::string> all;
  OutputTensors tensors(all, response);
  tensors.Add("text_output", std::vector<std::string>{"", "ab"});
  tensors.Add("cumulative_logprob", std::vector<float>{-0.5F});
  tensors.Add("num_input_tokens", std::vector<std::uint32_t>{258});
  ASSERT_EQ(response.outputs_size(), 3);
  EXPECT_EQ(response.outputs(0).shape(0), 2);
  EXPECT_EQ(response.outputs(1).datatype(), "FP32");
  EXPECT_EQ(response.outputs(2).datatype(), "UINT32");
  EXPECT_EQ(response.raw_output_contents(0), std::string("\0\0\0\0\2\0\0\0ab", 10));
  EXPECT_EQ(response.raw_output_contents(1), std::string("\0\0\0\xBF", 4));
  EXPECT_EQ(response.raw_output_contents(2), std::string("\2\1\0\0", 4));
}

TEST(OutputTensorsTest, LeavesOutTensorsThatWereNotRequested) {
  inference::ModelInferResponse response;
  const std::vector<std::string> wanted = {"finish_reason"};
  OutputTensors tensors(wanted, response);
  tensors.Add("text_output", std::vector<std::string>{"x"});
  tensors.Add("finish_reason", std::vector<std::string>{"stop"});
  ASSERT_EQ(response.outputs_size(), 1);
  EXPECT_EQ(response.outputs(0).name(), "finish_reason");
  EXPECT_EQ(response.raw_output_contents_size(), 1);
}

}  // namespace
}  // namespace nibble::kserve
