// Tensors of requests and responses: names, types, shapes and elements.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inference/grpc_service.pb.h"

namespace nibble::kserve {

inline constexpr std::size_t kMaxNameBytes = 64;  // of a client's name in a message

// A tensor that every model has. The names are those of Triton's backend for vLLM.
struct TensorSpec {
  const char* name;
  const char* datatype;  // of a request or response, such as "BYTES"
  inference::DataType config_type;
  std::int64_t size;  // its shape is [size]; -1: one element for each output of the request
  bool optional;      // of an input
};
std::span<const TensorSpec> Inputs();
std::span<const TensorSpec> Outputs();

// The input tensors of a request, which must outlive this object. Every tensor has one element.
class InputTensors {
 public:
  // Errors: InvalidArgument (FIELD_VIOLATION) names the tensor: unknown, repeated or missing, another type or shape, an
  // element that is missing, incomplete or not UTF-8, shared memory.
  static absl::StatusOr<InputTensors> Read(const inference::ModelInferRequest& request);

  // The element of a BYTES tensor, which is UTF-8; nullopt: the request has no such tensor.
  std::optional<std::string_view> Text(std::string_view name) const;
  // The element of a BOOL tensor; false: the request has no such tensor, or it is false.
  bool Bool(std::string_view name) const { return GivenBool(name).value_or(false); }
  std::optional<bool> GivenBool(std::string_view name) const;

 private:
  std::map<std::string, std::string_view, std::less<>> texts_;
  std::map<std::string, bool, std::less<>> bools_;
};

// Adds output tensors to a response. A tensor that the client did not request is left out.
class OutputTensors {
 public:
  // `wanted`: names; empty: all. Both must outlive this object.
  OutputTensors(const std::vector<std::string>& wanted, inference::ModelInferResponse& response)
      : wanted_(wanted), response_(response) {}
  void Add(const char* name, std::span<const std::string> elements);    // BYTES
  void Add(const char* name, std::span<const float> elements);          // FP32
  void Add(const char* name, std::span<const std::uint32_t> elements);  // UINT32

 private:
  // The raw contents of a new tensor; nullptr: not requested.
  std::string* AddTensor(const char* name, const char* datatype, std::size_t num_elements);

  const std::vector<std::string>& wanted_;
  inference::ModelInferResponse& response_;
};

// Errors of shared memory in a tensor's parameters, for inputs and outputs: Unimplemented names the tensor.
absl::Status CheckNoSharedMemory(std::string_view tensor,
                                 const google::protobuf::Map<std::string, inference::InferParameter>& parameters);

}  // namespace nibble::kserve
