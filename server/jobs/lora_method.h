// The adapter options that the methods lora and qlora share.
#pragma once
#include <string_view>

#include "absl/status/statusor.h"
#include "server/jobs/job_spec.h"
#include "server/model/adapter.h"

namespace nibble::jobs {

class SpecChecker;

// Adds what is wrong with the options. `method`: the name that prefixes their fields.
void CheckAdapter(std::string_view method, const LoraMethod& lora, SpecChecker& check);

// Method::MayDifferInStart of these options.
bool AdapterOptionMayDifferInStart(std::string_view field);

// A target_pattern replaces the names in target_modules.
void ResolveAdapter(LoraMethod& lora);

// The adapter that a job trains. InvalidArgument for a pattern that CheckAdapter refuses.
absl::StatusOr<model::AdapterConfig> AdapterOf(const LoraMethod& lora);

}  // namespace nibble::jobs
