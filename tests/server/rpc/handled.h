// The number of calls that ended with a code, from the metrics.
#pragma once
#include <string>

#include "server/telemetry/metrics.h"

namespace nibble::testing_support {

// Examples: `type` "unary", `method` "nibble.v1.ModelService/GetModel", `code` "CANCELLED". Returns 0 if no such series
// exists.
inline int Handled(telemetry::Metrics& metrics, const std::string& type, const std::string& method,
                   const std::string& code) {
  const std::size_t slash = method.find('/');
  const std::string series = "\ngrpc_server_handled_total{grpc_code=\"" + code + "\",grpc_method=\"" +
                             method.substr(slash + 1) + "\",grpc_service=\"" + method.substr(0, slash) +
                             "\",grpc_type=\"" + type + "\"} ";
  const std::string scrape = metrics.Scrape();
  const std::size_t at = scrape.find(series);
  return at == std::string::npos ? 0 : std::stoi(scrape.substr(at + series.size()));
}

}  // namespace nibble::testing_support
