#include "server/rpc/methods.h"

#include <google/protobuf/descriptor.h>

#include <string>

#include "server/base/log.h"
#include "server/rpc/call.h"

namespace nibble::rpc {

void RegisterService(telemetry::Metrics& metrics, const char* name) {
  const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
  CHECK(service != nullptr);
  for (int i = 0; i < service->method_count(); ++i) {
    const auto* method = service->method(i);
    const CallType type = method->client_streaming()
                              ? (method->server_streaming() ? CallType::kBidiStream : CallType::kClientStream)
                              : (method->server_streaming() ? CallType::kServerStream : CallType::kUnary);
    RegisterMethod(metrics, type, std::string(name) + "/" + method->name());
  }
}

void RegisterMethods(telemetry::Metrics& metrics) {
  for (const char* name : kServices) RegisterService(metrics, name);
}

}  // namespace nibble::rpc
