// What the server says of itself.
#pragma once
#include "absl/time/time.h"
#include "kernels/isa.h"
#include "nibble/v1/server_service.pb.h"
#include "server/jobs/database.h"
#include "server/serve/model_manager.h"

namespace nibble {

// All but the limits.
v1::ServerInfo StaticInfo(kernels::Isa isa, int threads, absl::Time started);
// All but ready and draining.
v1::ServerLoad LoadOf(const serve::ModelManager& manager, jobs::Database& database);

}  // namespace nibble
