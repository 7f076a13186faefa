// The server's answers about itself.
#pragma once
#include "absl/time/time.h"
#include "kernels/isa.h"
#include "nibble/v1/server_service.pb.h"
#include "server/jobs/database.h"
#include "server/serve/model_manager.h"

namespace nibble {

// Everything except the limits.
v1::ServerInfo StaticInfo(kernels::Isa isa, int threads, absl::Time started);
// Everything except ready and draining.
v1::ServerLoad LoadOf(const serve::ModelManager& manager, jobs::Database& database);

}  // namespace nibble
