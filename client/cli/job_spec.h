// The spec of `jobs create` and `jobs plan`: a file and flags; flags override the file, except for its method.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "nibble/v1/job_spec.pb.h"

namespace nibble::cli {

// An option of `jobs create` and `jobs plan` that sets one field.
struct SpecOption {
  const char* name;
  const char* path;  // of the field in JobSpec
  const char* help;
};
std::span<const SpecOption> SpecOptions();
// Returns "" if the option accepts the text, else an error text. The server checks ranges.
std::string CheckSpecOption(const SpecOption& option, const std::string& text);

// Options that the user set. Only these are sent, so the server's defaults apply to the rest.
struct JobFlags {
  std::map<std::string, std::string> fields;  // texts of SpecOptions, by path
  std::optional<std::string> spec_file, method, device, warmup;
  std::optional<std::int32_t> rank;
  std::optional<double> alpha;
};

// InvalidArgument names the field, NotFound the file. The server checks the values.
absl::StatusOr<v1::JobSpec> BuildSpec(const JobFlags& flags);

}  // namespace nibble::cli
