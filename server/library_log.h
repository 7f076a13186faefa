// The log lines of gRPC and protobuf, which these libraries would otherwise write to stderr as plain text.
#pragma once

namespace nibble {

// Writes the libraries' lines to our log from now on, at most 20 per second and every fatal line. Affects the whole
// process; call it before the first use of gRPC. GRPC_VERBOSITY still chooses which lines gRPC writes; by
// default, only errors.
void LogLibraries();

}  // namespace nibble
