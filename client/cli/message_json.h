// The JSON form of messages, in the namespace of the commands.
#pragma once
#include "server/messages/message_json.h"

namespace nibble::cli {

using messages::EnumName;
using messages::FromJson;
using messages::Lower;
using messages::LowerEnumName;
using messages::ToJson;
using messages::Upper;

}  // namespace nibble::cli
