// Fields of requests that vLLM's API gives their names: read alike for OpenAI's API and KServe's protocol.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "nibble/v1/inference_service.pb.h"
#include "server/base/json.h"
#include "server/openai/json_fields.h"

namespace nibble::openai {

std::optional<std::int32_t> Int32(JsonFields& fields, std::string_view name);

// nullopt: the value is not a token id, a whole number of 0 or more.
std::optional<std::int32_t> TokenId(const base::Json& value);
// Appends the ids of an array. False: an element is not an id; those before it are then appended.
bool AddTokenIds(const base::Json& array, google::protobuf::RepeatedField<std::int32_t>& ids);

// All fields of Sampling. The default temperature is 1, where the gRPC API is greedy.
void ReadSampling(JsonFields& fields, v1::Sampling& sampling);

}  // namespace nibble::openai
