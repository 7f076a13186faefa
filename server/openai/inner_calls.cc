#include "server/openai/inner_calls.h"

#include "server/auth/auth_processor.h"

namespace nibble::openai {

auth::Caller CallerOf(const http::RequestHead& head) {
  auth::Caller caller;
  const auto [begin, end] = head.fields.equal_range("authorization");
  for (auto it = begin; it != end; ++it) caller.authorization.push_back(it->second);
  caller.peer = head.peer;
  caller.certificate_names = head.certificate_names;
  return caller;
}

void ClientIdentity::AddTo(grpc::ClientContext& context) const {
  auth::Forward(CallerOf(head_), head_.request_id, forward_secret_, context);
}

}  // namespace nibble::openai
