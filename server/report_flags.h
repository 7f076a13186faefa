// The flags of the listener for trainers' reports over the network.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "server/options.h"

namespace nibble {

// Errors: InvalidArgument for flags that lack another flag that they require, for an address that is not loopback
// without TLS or --insecure, for a target that trainers cannot dial, and for a --report_ca that auth::ReadCaFile
// refuses.
absl::Status CheckReportFlags(const AppOptions& options);

// HOST:PORT that trainers dial: --report_target as it is, or the host of --report_address with the port on which the
// server listens.
std::string ReportTarget(const AppOptions& options, int port);

}  // namespace nibble
