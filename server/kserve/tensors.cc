#include "server/kserve/tensors.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "server/base/error.h"
#include "server/base/nearest.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"

namespace nibble::kserve {

namespace {

using base::FieldError;
using base::StrCat;
using Tensor = inference::ModelInferRequest::InferInputTensor;

constexpr char kBytes[] = "BYTES";
constexpr char kBool[] = "BOOL";
constexpr std::size_t kLengthBytes = 4;  // of the length before a BYTES element
constexpr int kMaxShownDimensions = 8;   // of a wrong shape, in a message

constexpr TensorSpec kInputs[] = {
    {"text_input", kBytes, inference::TYPE_STRING, 1, false},
    {"stream", kBool, inference::TYPE_BOOL, 1, true},
    {"sampling_parameters", kBytes, inference::TYPE_STRING, 1, true},
    {"exclude_input_in_output", kBool, inference::TYPE_BOOL, 1, true},
    {"return_finish_reason", kBool, inference::TYPE_BOOL, 1, true},
    {"return_cumulative_logprob", kBool, inference::TYPE_BOOL, 1, true},
    {"return_logprobs", kBool, inference::TYPE_BOOL, 1, true},
    {"return_num_input_tokens", kBool, inference::TYPE_BOOL, 1, true},
    {"return_num_output_tokens", kBool, inference::TYPE_BOOL, 1, true},
};
constexpr TensorSpec kOutputs[] = {
    {"text_output", kBytes, inference::TYPE_STRING, -1, false},
    {"finish_reason", kBytes, inference::TYPE_STRING, -1, false},
    {"cumulative_logprob", "FP32", inference::TYPE_FP32, -1, false},
    {"logprobs", kBytes, inference::TYPE_STRING, -1, false},
    {"num_input_tokens", "UINT32", inference::TYPE_UINT32, 1, false},
    {"num_output_tokens", "UINT32", inference::TYPE_UINT32, -1, false},
};

// Raw contents are little endian, as this machine's numbers.
static_assert(std::endian::native == std::endian::little);

std::uint32_t ReadLength(std::string_view bytes) {
  std::uint32_t length = 0;
  std::copy_n(bytes.data(), kLengthBytes, reinterpret_cast<char*>(&length));
  return length;
}

template <typename Number>
void Append(Number number, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

std::string ShapeText(const google::protobuf::RepeatedField<std::int64_t>& shape) {
  const auto end = shape.begin() + std::min(shape.size(), kMaxShownDimensions);
  return StrCat("[", absl::StrJoin(shape.begin(), end, ", "), shape.size() > kMaxShownDimensions ? ", ..." : "", "]");
}

// The only element of a BYTES tensor's raw contents.
absl::StatusOr<std::string_view> RawText(std::string_view name, std::string_view raw) {
  if (raw.size() < kLengthBytes) {
    return FieldError(name, StrCat("has ", raw.size(), " bytes of raw contents, wanted at least ", kLengthBytes,
                                   ", the length of its element"));
  }
  const std::uint32_t length = ReadLength(raw);
  raw.remove_prefix(kLengthBytes);
  if (length != raw.size()) {
    return FieldError(name, StrCat("has an element whose length is ", length, ", followed by ", raw.size(),
                                   " bytes; wanted one element with all of them"));
  }
  return raw;
}

absl::StatusOr<bool> RawBool(std::string_view name, std::string_view raw) {
  if (raw.size() != 1) return FieldError(name, StrCat("has ", raw.size(), " bytes of raw contents, wanted 1"));
  if (raw.front() != 0 && raw.front() != 1) {
    return FieldError(
        name, StrCat("has the byte ", static_cast<int>(static_cast<unsigned char>(raw.front())), ", wanted 0 or 1"));
  }
  return raw.front() == 1;
}

int NumElements(const inference::InferTensorContents& contents) {
  return contents.bool_contents_size() + contents.int_contents_size() + contents.int64_contents_size() +
         contents.uint_contents_size() + contents.uint64_contents_size() + contents.fp32_contents_size() +
         contents.fp64_contents_size() + contents.bytes_contents_size();
}

// Checks that the tensor's contents have one element, of the right type.
absl::Status CheckContents(const Tensor& tensor, int num_of_type, const char* field) {
  const int all = NumElements(tensor.contents());
  if (all == 1 && num_of_type == 1) return absl::OkStatus();
  return FieldError(tensor.name(), StrCat("has ", num_of_type, " elements in ", field, " and ", all - num_of_type,
                                          " in other fields of its contents, wanted one in ", field));
}

absl::Status CheckTensor(const Tensor& tensor, const TensorSpec& spec) {
  NIBBLE_RETURN_IF_ERROR(CheckNoSharedMemory(tensor.name(), tensor.parameters()));
  if (tensor.datatype() != spec.datatype) {
    return FieldError(tensor.name(), StrCat("has the datatype \"", tensor.datatype().substr(0, kMaxNameBytes),
                                            "\", wanted ", spec.datatype));
  }
  if (tensor.shape_size() != 1 || tensor.shape(0) != spec.size)
    return FieldError(tensor.name(), StrCat("has the shape ", ShapeText(tensor.shape()), ", wanted [", spec.size, "]"));
  return absl::OkStatus();
}

const TensorSpec* FindInput(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kInputs), std::end(kInputs), [&](const TensorSpec& spec) { return spec.name == name; });
  return found == std::end(kInputs) ? nullptr : found;
}

absl::Status UnknownInput(const std::string& name) {
  std::vector<std::string> known;
  for (const TensorSpec& spec : kInputs) known.emplace_back(spec.name);
  return FieldError(name.empty() ? "inputs.name" : name.substr(0, kMaxNameBytes),
                    StrCat("is not an input tensor of this model", base::DidYouMeanOrList(name, known)));
}

}  // namespace

std::span<const TensorSpec> Inputs() { return kInputs; }
std::span<const TensorSpec> Outputs() { return kOutputs; }

absl::Status CheckNoSharedMemory(std::string_view tensor,
                                 const google::protobuf::Map<std::string, inference::InferParameter>& parameters) {
  for (const auto& [key, value] : parameters) {
    if (!absl::StartsWith(key, "shared_memory")) continue;
    return base::WithReason(
        absl::UnimplementedError(StrCat(tensor, ": is in shared memory, wanted its elements in the message")),
        "UNIMPLEMENTED", {{"name", std::string(tensor)}});
  }
  return absl::OkStatus();
}

absl::StatusOr<InputTensors> InputTensors::Read(const inference::ModelInferRequest& request) {
  InputTensors out;
  const bool raw = request.raw_input_contents_size() > 0;
  for (int i = 0; i < request.inputs_size(); ++i) {
    const Tensor& tensor = request.inputs(i);
    const TensorSpec* spec = FindInput(tensor.name());
    if (spec == nullptr) return UnknownInput(tensor.name());
    if (out.texts_.contains(tensor.name()) || out.bools_.contains(tensor.name()))
      return FieldError(tensor.name(), "is in the request twice, wanted it once");
    NIBBLE_RETURN_IF_ERROR(CheckTensor(tensor, *spec));
    if (raw && NumElements(tensor.contents()) > 0)
      return FieldError(tensor.name(), "has both contents and raw contents, wanted one of them");
    if (raw && i >= request.raw_input_contents_size()) {
      return FieldError("raw_input_contents", StrCat("has ", request.raw_input_contents_size(), " elements for ",
                                                     request.inputs_size(), " tensors, wanted one for each"));
    }
    if (spec->config_type == inference::TYPE_BOOL) {
      if (!raw) NIBBLE_RETURN_IF_ERROR(CheckContents(tensor, tensor.contents().bool_contents_size(), "bool_contents"));
      NIBBLE_ASSIGN_OR_RETURN(out.bools_[tensor.name()],
                              raw ? RawBool(tensor.name(), request.raw_input_contents(i))
                                  : absl::StatusOr<bool>(tensor.contents().bool_contents(0)));
      continue;
    }
    if (!raw) NIBBLE_RETURN_IF_ERROR(CheckContents(tensor, tensor.contents().bytes_contents_size(), "bytes_contents"));
    NIBBLE_ASSIGN_OR_RETURN(const std::string_view text,
                            raw ? RawText(tensor.name(), request.raw_input_contents(i))
                                : absl::StatusOr<std::string_view>(tensor.contents().bytes_contents(0)));
    if (!base::IsValidUtf8(text)) return FieldError(tensor.name(), "has an element that is not UTF-8");
    out.texts_[tensor.name()] = text;
  }
  if (raw && request.raw_input_contents_size() != request.inputs_size()) {
    return FieldError("raw_input_contents", StrCat("has ", request.raw_input_contents_size(), " elements for ",
                                                   request.inputs_size(), " tensors, wanted one for each"));
  }
  for (const TensorSpec& spec : kInputs) {
    if (spec.optional || out.texts_.contains(spec.name)) continue;
    return FieldError(spec.name, StrCat("is missing, wanted a tensor of type ", spec.datatype));
  }
  return out;
}

std::optional<std::string_view> InputTensors::Text(std::string_view name) const {
  const auto found = texts_.find(name);
  return found == texts_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<bool> InputTensors::GivenBool(std::string_view name) const {
  const auto found = bools_.find(name);
  return found == bools_.end() ? std::nullopt : std::optional(found->second);
}

std::string* OutputTensors::AddTensor(const char* name, const char* datatype, std::size_t num_elements) {
  if (!wanted_.empty() && std::find(wanted_.begin(), wanted_.end(), name) == wanted_.end()) return nullptr;
  auto& tensor = *response_.add_outputs();
  tensor.set_name(name);
  tensor.set_datatype(datatype);
  tensor.add_shape(static_cast<std::int64_t>(num_elements));
  return response_.add_raw_output_contents();
}

void OutputTensors::Add(const char* name, std::span<const std::string> elements) {
  std::string* raw = AddTensor(name, kBytes, elements.size());
  if (raw == nullptr) return;
  for (const std::string& element : elements) {
    Append(static_cast<std::uint32_t>(element.size()), *raw);
    *raw += element;
  }
}

void OutputTensors::Add(const char* name, std::span<const float> elements) {
  std::string* raw = AddTensor(name, "FP32", elements.size());
  if (raw == nullptr) return;
  for (const float element : elements) Append(element, *raw);
}

void OutputTensors::Add(const char* name, std::span<const std::uint32_t> elements) {
  std::string* raw = AddTensor(name, "UINT32", elements.size());
  if (raw == nullptr) return;
  for (const std::uint32_t element : elements) Append(element, *raw);
}

}  // namespace nibble::kserve
