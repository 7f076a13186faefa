// Any of our messages as JSON and back, for what is too large to write out field by field (JobSpec, reports). Keys are
// the proto's; numbers of 64 bits are numbers, enums their names without prefix in lower case, times RFC 3339,
// durations "1.5s". A field with presence that is unset is left out; every other is printed, zeros too.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "server/base/json.h"

namespace nibble::cli {

base::Json ToJson(const google::protobuf::Message& message);

// Sets the fields that the object names, on top of what the message has. Enum names are accepted with and without
// prefix, in any case; durations as text or as seconds. InvalidArgument (FIELD_VIOLATION) names an unknown field, a
// wrong type, a number out of range, and two fields of one oneof.
absl::Status FromJson(const base::Json& json, google::protobuf::Message& message);

// "RUNNING" of JOB_STATE_RUNNING; "UNSPECIFIED" for numbers that this build does not know.
std::string EnumName(const google::protobuf::EnumDescriptor& type, int number);
std::string LowerEnumName(const google::protobuf::EnumDescriptor& type, int number);

template <typename Enum>
std::string Upper(Enum value) {
  return EnumName(*google::protobuf::GetEnumDescriptor<Enum>(), value);
}
template <typename Enum>
std::string Lower(Enum value) {
  return LowerEnumName(*google::protobuf::GetEnumDescriptor<Enum>(), value);
}

}  // namespace nibble::cli
