// Converts messages to JSON and back, for messages with too many fields to list by hand (JobSpec, reports). Keys are
// the proto's field names. 64-bit integers are JSON numbers, enums their names without prefix in lower case, times
// RFC 3339, durations "1.5s". Unset fields with presence are left out; all other fields are printed, including zeros.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "server/base/json.h"

namespace nibble::messages {

base::Json ToJson(const google::protobuf::Message& message);

// Sets the fields that the object names; other fields of the message stay. Accepts enum names without prefix in any
// case, or exactly as in the proto, and durations as text or as a number of seconds. InvalidArgument (FIELD_VIOLATION)
// names an unknown field, a wrong type, a number out of range, or two fields of one oneof.
absl::Status FromJson(const base::Json& json, google::protobuf::Message& message);

// "RUNNING" for JOB_STATE_RUNNING; "UNSPECIFIED" for numbers that this build does not know.
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

}  // namespace nibble::messages
