#include "server/report_flags.h"

#include "server/auth/tls.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/http/host_port.h"

namespace nibble {

using base::StrCat;

namespace {

bool IsAnyAddress(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

absl::Status CheckTarget(const ReportOptions& report, const http::HostPort& address) {
  if (report.target.empty()) {
    if (!IsAnyAddress(address.host)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        StrCat("--report_target: wanted the HOST:PORT that trainers dial, because --report_address ", report.address,
               " stands for all addresses of this machine"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const http::HostPort target, http::ParseHostPort("--report_target", report.target));
  if (IsAnyAddress(target.host)) {
    return absl::InvalidArgumentError(
        StrCat("--report_target: ", target.host, " is not a name that trainers can dial"));
  }
  if (target.port == 0) return absl::InvalidArgumentError("--report_target: has port 0");
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReportFlags(const AppOptions& options) {
  const ReportOptions& report = options.report;
  const SecurityOptions& security = options.security;
  if (report.address.empty()) {
    if (!report.target.empty()) return absl::InvalidArgumentError("--report_target: requires --report_address");
    if (!report.ca.empty()) return absl::InvalidArgumentError("--report_ca: requires --report_address");
    return absl::OkStatus();
  }
  NIBBLE_ASSIGN_OR_RETURN(const http::HostPort address, http::ParseHostPort("--report_address", report.address));
  NIBBLE_RETURN_IF_ERROR(CheckTarget(report, address));
  const bool tls = !security.tls_cert.empty();
  if (!tls && !http::IsLoopback(address.host) && !security.insecure) {
    return absl::InvalidArgumentError(
        StrCat("--report_address: ", address.host,
               " is not a loopback address: wanted --tls_cert, --tls_key and --report_ca (or --insecure, which sends "
               "the trainers' secrets in plaintext)"));
  }
  if (!tls) {
    if (report.ca.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("--report_ca: requires --tls_cert and --tls_key");
  }
  if (report.ca.empty()) {
    return absl::InvalidArgumentError(
        "--report_ca: wanted the PEM file with which trainers check the server's certificate, because --report_address "
        "and --tls_cert are set");
  }
  return auth::ReadCaFile("--report_ca", report.ca).status();
}

std::string ReportTarget(const AppOptions& options, int port) {
  const ReportOptions& report = options.report;
  if (!report.target.empty()) return report.target;
  return StrCat(report.address.substr(0, report.address.rfind(':') + 1), port);
}

}  // namespace nibble
