// Requests and responses of KServe's protocol, as tests write and read them.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "inference/grpc_service.pb.h"

namespace nibble::testing_support {

inline std::string LengthBefore(std::uint32_t length, const std::string& bytes) {
  static_assert(std::endian::native == std::endian::little);
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + bytes;
}
inline std::string Raw(const std::string& element) {
  return LengthBefore(static_cast<std::uint32_t>(element.size()), element);
}

inline inference::ModelInferRequest::InferInputTensor& AddTensor(inference::ModelInferRequest& request,
                                                                 const std::string& name, const std::string& datatype,
                                                                 const std::vector<std::int64_t>& shape) {
  auto& tensor = *request.add_inputs();
  tensor.set_name(name);
  tensor.set_datatype(datatype);
  for (const std::int64_t size : shape) tensor.add_shape(size);
  return tensor;
}
inline void AddText(inference::ModelInferRequest& request, const std::string& name, const std::string& text) {
  AddTensor(request, name, "BYTES", {1});
  request.add_raw_input_contents(Raw(text));
}
inline void AddBool(inference::ModelInferRequest& request, const std::string& name, bool value = true) {
  AddTensor(request, name, "BOOL", {1});
  request.add_raw_input_contents(std::string(1, value ? '\1' : '\0'));
}

inline inference::ModelInferRequest InferRequest(const std::string& model, const std::string& text,
                                                 const std::string& sampling = "") {
  inference::ModelInferRequest request;
  request.set_model_name(model);
  AddText(request, "text_input", text);
  if (!sampling.empty()) AddText(request, "sampling_parameters", sampling);
  return request;
}

// The raw contents of an output tensor; "absent" if there is none.
inline std::string RawOutput(const inference::ModelInferResponse& response, const std::string& name) {
  for (int i = 0; i < response.outputs_size(); ++i) {
    if (response.outputs(i).name() == name) return response.raw_output_contents(i);
  }
  return "absent";
}
// The elements of a BYTES tensor.
inline std::vector<std::string> TextsOf(const inference::ModelInferResponse& response, const std::string& name) {
  std::vector<std::string> texts;
  const std::string raw = RawOutput(response, name);
  for (std::size_t at = 0; at + sizeof(std::uint32_t) <= raw.size();) {
    std::uint32_t length = 0;
    std::memcpy(&length, raw.data() + at, sizeof length);
    texts.push_back(raw.substr(at + sizeof length, length));
    at += sizeof length + length;
  }
  return texts;
}
// The only number of an FP32 or UINT32 tensor.
template <typename Number>
Number NumberOf(const inference::ModelInferResponse& response, const std::string& name) {
  const std::string raw = RawOutput(response, name);
  Number number = 0;
  if (raw.size() == sizeof number) std::memcpy(&number, raw.data(), sizeof number);
  return number;
}

}  // namespace nibble::testing_support
