// What GetServerInfo answers.
#pragma once
#include <string>

#include "absl/time/time.h"
#include "kernels/isa.h"
#include "server/options.h"
#include "server/rpc/call.h"
#include "server/rpc/server_facts.h"

namespace nibble {

// The server's facts about itself: its build, its machine, its limits. `trainer_namespace`: TrainerRunner::name_space.
rpc::ServerFacts GatherFacts(const AppOptions& options, const rpc::CallEnvironment& calls, kernels::Isa isa,
                             absl::Time started, const std::string& trainer_namespace);

}  // namespace nibble
