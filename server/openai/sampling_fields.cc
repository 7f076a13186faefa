#include "server/openai/sampling_fields.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "server/base/strings.h"

namespace nibble::openai {

using base::Json;
using base::StrCat;

namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kMaxChoices = 16;  // of a prompt, as Sampling.n; checked here because answers reserve them
// As the gRPC API; checked here too, because each prompt of a request has a copy.
constexpr std::size_t kMaxLogitBias = 300;

void ReadLogitBias(JsonFields& fields, v1::Sampling& sampling) {
  const Json* bias = fields.Any("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) return fields.Fail("logit_bias", StrCat("is ", TypeName(*bias), ", wanted an object"));
  if (bias->size() > kMaxLogitBias)
    return fields.Fail("logit_bias", StrCat("has ", bias->size(), " tokens, wanted at most ", kMaxLogitBias));
  for (const auto& [key, value] : bias->items()) {
    std::int32_t token = 0;
    if (!absl::SimpleAtoi(key, &token))
      return fields.Fail("logit_bias", StrCat("has the key \"", key, "\", wanted a token id"));
    if (!value.is_number())
      return fields.Fail("logit_bias", StrCat("has ", TypeName(value), " for the token ", key, ", wanted a number"));
    (*sampling.mutable_logit_bias())[token] = value.get<double>();
  }
}

}  // namespace

std::optional<std::int32_t> Int32(JsonFields& fields, std::string_view name) {
  const auto value = fields.Int(name);
  if (!value.has_value()) return std::nullopt;
  if (*value < -kMaxInt32 || *value > kMaxInt32) {
    fields.Fail(name, StrCat("is ", *value, ", wanted a number of 32 bits"));
    return std::nullopt;
  }
  return static_cast<std::int32_t>(*value);
}

std::optional<std::int32_t> TokenId(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  const auto id = value.get<std::int64_t>();
  if (id < 0 || id > kMaxInt32) return std::nullopt;
  return static_cast<std::int32_t>(id);
}

bool AddTokenIds(const Json& array, google::protobuf::RepeatedField<std::int32_t>& ids) {
  for (const Json& each : array) {
    const auto id = TokenId(each);
    if (!id.has_value()) return false;
    ids.Add(*id);
  }
  return true;
}

void ReadSampling(JsonFields& fields, v1::Sampling& sampling) {
  sampling.set_temperature(fields.Number("temperature").value_or(1));
  if (const auto value = fields.Number("top_p")) sampling.set_top_p(*value);
  if (const auto value = fields.Number("presence_penalty")) sampling.set_presence_penalty(*value);
  if (const auto value = fields.Number("frequency_penalty")) sampling.set_frequency_penalty(*value);
  if (const auto value = fields.Int("seed")) sampling.set_seed(*value);
  if (const auto value = Int32(fields, "n")) {
    if (*value < 1 || *value > kMaxChoices) fields.Fail("n", StrCat("is ", *value, ", wanted 1 to ", kMaxChoices));
    sampling.set_n(*value);
  }
  ReadLogitBias(fields, sampling);
  // Fields of vLLM's API.
  if (const auto value = Int32(fields, "top_k")) sampling.set_top_k(*value == -1 ? 0 : *value);  // -1: all
  if (const auto value = fields.Number("min_p")) sampling.set_min_p(*value);
  if (const auto value = fields.Number("repetition_penalty")) sampling.set_repetition_penalty(*value);
}

}  // namespace nibble::openai
