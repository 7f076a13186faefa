// The spec of `jobs create`: a file and flags; flags override the file.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "nibble/v1/job_spec.pb.h"

namespace nibble::cli {

// Options that the user set. Only these are sent, so the server's defaults apply to the rest.
struct JobFlags {
  std::optional<std::string> spec_file, method, base, dataset, eval_dataset, output, device, packing, warmup;
  std::optional<std::int64_t> max_steps, save_every, eval_every, seed;
  std::optional<std::int32_t> micro_batch, grad_accum, seq_len, rank;
  std::optional<double> lr, alpha, epochs;
};

// InvalidArgument names the field, NotFound the file. The server checks the values.
absl::StatusOr<v1::JobSpec> BuildSpec(const JobFlags& flags);

}  // namespace nibble::cli
