// gRPC's reflection service, which tells any client every method and message: off unless asked for (ops.md 4).
#pragma once
#include <grpcpp/server_builder.h>

namespace nibble {

// To be called once on every builder: linking the library alone would turn it on.
void SetReflection(grpc::ServerBuilder& builder, bool on);

}  // namespace nibble
