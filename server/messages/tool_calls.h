// Calls of tools, joined from the pieces of a stream.
#pragma once
#include "nibble/v1/inference_service.pb.h"

namespace nibble::messages {

// Adds the pieces of `delta` to the calls of its output, and drops a malformed call. Deltas come in order.
void AddToolCalls(const v1::GenerateDelta& delta, google::protobuf::RepeatedPtrField<v1::ToolCall>& calls);

}  // namespace nibble::messages
