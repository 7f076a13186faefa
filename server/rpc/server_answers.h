// The server's answers about itself.
#pragma once
#include "nibble/v1/server_service.pb.h"
#include "server/jobs/database.h"
#include "server/rpc/server_facts.h"
#include "server/serve/model_manager.h"

namespace nibble::rpc {

v1::ServerInfo ToProto(const ServerFacts& facts);
// The load now. A database that cannot be read counts as one without jobs.
v1::ServerLoad LoadNow(const serve::ModelManager& manager, jobs::Database& database, bool ready, bool draining);

}  // namespace nibble::rpc
