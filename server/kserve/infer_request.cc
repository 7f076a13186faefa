#include "server/kserve/infer_request.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/nearest.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/kserve/tensors.h"
#include "server/openai/constraint_fields.h"
#include "server/openai/json_fields.h"
#include "server/openai/sampling_fields.h"
#include "server/rpc/time.h"

namespace nibble::kserve {

namespace {

using base::FieldError;
using base::Json;
using base::StrCat;
using openai::Int32;
using openai::JsonFields;
using Parameters = google::protobuf::Map<std::string, inference::InferParameter>;

constexpr std::size_t kMaxSamplingBytes = 64 << 10;  // of the JSON, which is parsed on gRPC's thread
constexpr std::size_t kMaxIdBytes = 128;             // as GenerateRequest.request_id
constexpr std::int32_t kMaxLogprobs = 20;            // as OutputOptions.logprobs
constexpr std::int32_t kMaxTokens = 16;              // vLLM's default

constexpr char kTimeout[] = "timeout";
constexpr char kPriority[] = "priority";
constexpr char kEmptyFinal[] = "triton_enable_empty_final_response";
constexpr const char* kSequence[] = {"sequence_id", "sequence_start", "sequence_end"};

// Sampling parameters that clients also send as texts: "0.1", "true".
constexpr const char* kNumbers[] = {"n",
                                    "best_of",
                                    "seed",
                                    "max_tokens",
                                    "min_tokens",
                                    "top_k",
                                    "logprobs",
                                    "temperature",
                                    "top_p",
                                    "min_p",
                                    "presence_penalty",
                                    "frequency_penalty",
                                    "repetition_penalty",
                                    "length_penalty"};
constexpr const char* kBools[] = {"ignore_eos",
                                  "skip_special_tokens",
                                  "include_stop_str_in_output",
                                  "spaces_between_special_tokens",
                                  "detokenize",
                                  "use_beam_search",
                                  "early_stopping"};

template <typename Names>
bool Contains(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

constexpr char kStructured[] = "structured_outputs";

// Converts texts to the numbers, truth values and the object that they spell. Other texts stay: their reader names the
// error.
void ReadTexts(Json& parameters) {
  if (!parameters.is_object()) return;
  for (auto& [name, value] : parameters.items()) {
    const bool number = Contains(kNumbers, name);
    if (value.is_string() && name == kStructured) {
      if (const auto spelled = base::ParseJson(value.get<std::string>()); spelled.ok()) value = *spelled;
    }
    if (!value.is_string() || (!number && !Contains(kBools, name))) continue;
    const auto spelled = base::ParseJson(absl::AsciiStrToLower(value.get<std::string>()));
    if (spelled.ok() && (number ? spelled->is_number() : spelled->is_boolean())) value = *spelled;
  }
}

void ReadStops(JsonFields& fields, v1::Stopping& stopping) {
  const Json* stop = fields.Any("stop");
  const bool strings = stop != nullptr && stop->is_array() &&
                       std::all_of(stop->begin(), stop->end(), [](const Json& one) { return one.is_string(); });
  if (strings) {
    for (const Json& one : *stop) stopping.add_stop(one.get<std::string>());
  } else if (stop != nullptr && stop->is_string()) {
    stopping.add_stop(stop->get<std::string>());
  } else if (stop != nullptr) {
    fields.Fail("stop", "wanted a string or an array of strings");
  }
  const Json* ids = fields.Array("stop_token_ids");
  if (ids == nullptr) return;
  if (!openai::AddTokenIds(*ids, *stopping.mutable_stop_token_ids()))
    fields.Fail("stop_token_ids", "wanted an array of token ids");
}

void ReadStopping(JsonFields& fields, v1::Stopping& stopping) {
  stopping.set_max_tokens(Int32(fields, "max_tokens").value_or(kMaxTokens));
  if (const auto value = Int32(fields, "min_tokens")) stopping.set_min_tokens(*value);
  if (const auto value = fields.Bool("ignore_eos")) stopping.set_ignore_eos(*value);
  if (const auto value = fields.Bool("include_stop_str_in_output")) stopping.set_include_stop(*value);
  ReadStops(fields, stopping);
}

// Reads vLLM's sampling parameters.
absl::Status ReadParameters(Json parameters, InferCall& call) {
  ReadTexts(parameters);
  JsonFields fields(parameters, StrCat(call.sampling, "."));
  openai::ReadSampling(fields, *call.request.mutable_sampling());
  ReadStopping(fields, *call.request.mutable_stopping());
  const auto logprobs = Int32(fields, "logprobs");
  call.has_logprobs = logprobs.has_value();
  call.num_logprobs = logprobs.value_or(0);
  if (logprobs.has_value() || call.cumulative_logprob) {
    // With all alternatives, the rank of most tokens is known. A wrong number is sent unchanged, for its error.
    const bool ranks = logprobs.has_value() && call.logprobs && *logprobs >= 0 && *logprobs < kMaxLogprobs;
    call.request.mutable_output()->set_logprobs(ranks ? kMaxLogprobs : call.num_logprobs);
  }
  if (const auto skip = fields.Bool("skip_special_tokens"))
    call.request.mutable_output()->set_include_special_tokens(!*skip);
  openai::ReadStructuredOutputs(fields, "", call.request);
  fields.Neutral("best_of", 1);
  fields.Neutral("detokenize", true);
  fields.Neutral("spaces_between_special_tokens", true);
  fields.Neutral("use_beam_search", false);
  fields.Neutral("early_stopping", false);
  fields.Neutral("length_penalty", 1);
  for (const char* name : {"prompt_logprobs", "bad_words", "allowed_token_ids", "truncate_prompt_tokens",
                           "guided_decoding", "logits_processors", "extra_args"})
    fields.Unsupported(name);
  if (fields.Any("lora_name") != nullptr)
    fields.Fail("lora_name", "is not supported; wanted the adapter's name as model_name");
  return fields.Finish();
}

Json ToJson(const inference::InferParameter& parameter) {
  switch (parameter.parameter_choice_case()) {
    case inference::InferParameter::kBoolParam: return parameter.bool_param();
    case inference::InferParameter::kInt64Param: return parameter.int64_param();
    case inference::InferParameter::kStringParam: return parameter.string_param();
    case inference::InferParameter::kDoubleParam: return parameter.double_param();
    case inference::InferParameter::kUint64Param: return parameter.uint64_param();
    case inference::InferParameter::PARAMETER_CHOICE_NOT_SET: return nullptr;
  }
  return nullptr;
}

// Reads the parameters that have a meaning of their own, and returns the others, by which a client may give sampling
// parameters.
absl::StatusOr<Json> ReadRequestParameters(const Parameters& parameters, InferCall& call) {
  Json others = Json::object();
  const std::map<std::string, inference::InferParameter> sorted(parameters.begin(), parameters.end());
  for (const auto& [key, value] : sorted) {
    const std::string field = StrCat("parameters.", key.substr(0, kMaxNameBytes));
    if (key == kTimeout) {
      const bool whole = value.has_int64_param() || value.has_uint64_param();
      const std::int64_t micros =
          value.has_uint64_param() ? static_cast<std::int64_t>(std::min<std::uint64_t>(value.uint64_param(), INT64_MAX))
                                   : value.int64_param();
      if (!whole || micros < 0) {
        return FieldError(field, StrCat("is ", base::Dump(ToJson(value)).substr(0, kMaxNameBytes),
                                        ", wanted a number of microseconds, 0 or more"));
      }
      if (micros > 0) *call.request.mutable_queue_timeout() = rpc::ToProto(absl::Microseconds(micros));
    } else if (key == kEmptyFinal) {
      if (!value.has_bool_param()) return FieldError(field, "wanted true or false");
      call.empty_final = value.bool_param();
    } else if (Contains(kSequence, key)) {
      return FieldError(field, "is not supported: no model has a state that its requests share");
    } else if (absl::StartsWith(key, "triton_")) {
      return FieldError(field, "is not a parameter of this server");
    } else if (key != kPriority) {  // without effect, as for every model without priority levels
      others[key] = ToJson(value);
    }
  }
  return others;
}

absl::Status ReadOutputs(const inference::ModelInferRequest& request, InferCall& call) {
  std::vector<std::string> known;
  for (const TensorSpec& spec : Outputs()) known.emplace_back(spec.name);
  for (const auto& output : request.outputs()) {
    const std::string name = output.name().empty() ? "outputs.name" : output.name().substr(0, kMaxNameBytes);
    if (!Contains(known, output.name())) {
      return FieldError(name,
                        StrCat("is not an output tensor of this model", base::DidYouMeanOrList(output.name(), known)));
    }
    if (Contains(call.outputs, output.name())) return FieldError(name, "is requested twice, wanted it once");
    NIBBLE_RETURN_IF_ERROR(CheckNoSharedMemory(name, output.parameters()));
    if (output.parameters().contains("classification"))
      return FieldError(name, "is requested as a classification, wanted its elements");
    call.outputs.push_back(output.name());
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> ParseSampling(std::string_view text) {
  if (text.size() > kMaxSamplingBytes) {
    return FieldError(kSamplingTensor, StrCat("has ", text.size(), " bytes, wanted at most ", kMaxSamplingBytes));
  }
  auto json = base::ParseJson(text);
  if (!json.ok()) return FieldError(kSamplingTensor, StrCat("is not JSON: ", json.status().message()));
  return json;
}

}  // namespace

absl::Status CheckVersion(std::string_view field, std::string_view model, std::string_view version) {
  if (version.empty() || version == kModelVersion) return absl::OkStatus();
  return base::WithReason(
      absl::NotFoundError(StrCat(field, ": is \"", version.substr(0, kMaxNameBytes), "\", wanted \"", kModelVersion,
                                 "\" or none: every model has one version")),
      "MODEL", {{"name", std::string(model)}});
}

std::string ClientName(std::string_view field, std::string_view sampling) {
  if (field == "text") return "text_input";
  if (field == "request_id") return "id";
  if (field == "queue_timeout") return StrCat("parameters.", kTimeout);
  if (field == "model" || field == "GenerateRequest.model") return "model_name";
  if (field == "stopping.include_stop") return StrCat(sampling, ".include_stop_str_in_output");
  for (const std::string_view prefix : {"sampling.", "stopping.", "output."}) {
    if (field.starts_with(prefix)) return StrCat(sampling, ".", field.substr(prefix.size()));
  }
  return std::string(field);
}

absl::StatusOr<InferCall> ParseInfer(const inference::ModelInferRequest& request, bool may_stream) {
  InferCall call;
  if (request.model_name().empty()) return FieldError("model_name", "is empty, wanted a model's name");
  NIBBLE_RETURN_IF_ERROR(CheckVersion("model_version", request.model_name(), request.model_version()));
  if (request.id().size() > kMaxIdBytes)
    return FieldError("id", StrCat("has ", request.id().size(), " bytes, wanted at most ", kMaxIdBytes));
  call.id = request.id();
  call.request.set_model(request.model_name());
  call.request.set_request_id(request.id());
  NIBBLE_RETURN_IF_ERROR(ReadOutputs(request, call));
  NIBBLE_ASSIGN_OR_RETURN(const InputTensors tensors, InputTensors::Read(request));
  call.request.set_text(std::string(*tensors.Text("text_input")));
  call.stream = tensors.Bool("stream");
  if (call.stream && !may_stream)
    return FieldError("stream", "is true, wanted false: only ModelStreamInfer answers with a stream");
  const auto exclude = tensors.GivenBool("exclude_input_in_output");
  if (call.stream && exclude == false)
    return FieldError("exclude_input_in_output",
                      "is false, wanted true or no such tensor: a stream never repeats the prompt");
  if (!call.stream && exclude != true) call.request.mutable_output()->set_echo(true);
  call.finish_reason = tensors.Bool("return_finish_reason");
  call.cumulative_logprob = tensors.Bool("return_cumulative_logprob");
  call.logprobs = tensors.Bool("return_logprobs");
  call.num_input_tokens = tensors.Bool("return_num_input_tokens");
  call.num_output_tokens = tensors.Bool("return_num_output_tokens");
  NIBBLE_ASSIGN_OR_RETURN(Json parameters, ReadRequestParameters(request.parameters(), call));
  if (const auto sampling = tensors.Text(kSamplingTensor); sampling.has_value()) {
    // Clients may repeat the sampling parameters as parameters of the request: Triton's own example does.
    NIBBLE_ASSIGN_OR_RETURN(parameters, ParseSampling(*sampling));
  } else {
    call.sampling = "parameters";
  }
  NIBBLE_RETURN_IF_ERROR(ReadParameters(std::move(parameters), call));
  call.n = call.request.sampling().has_n() ? call.request.sampling().n() : 1;
  return call;
}

}  // namespace nibble::kserve
