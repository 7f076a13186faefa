#include "server/messages/tool_calls.h"

namespace nibble::messages {

void AddToolCalls(const v1::GenerateDelta& delta, google::protobuf::RepeatedPtrField<v1::ToolCall>& calls) {
  for (const v1::ToolCallDelta& part : delta.tool_calls()) {
    if (!part.name().empty()) {
      v1::ToolCall& call = *calls.Add();
      call.set_id(part.id());
      call.set_name(part.name());
    }
    if (calls.empty()) continue;  // only a server that is not ours sends a call without its beginning
    calls.rbegin()->mutable_arguments()->append(part.arguments());
    if (part.malformed()) calls.RemoveLast();
  }
}

}  // namespace nibble::messages
