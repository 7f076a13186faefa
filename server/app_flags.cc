#include "server/app_flags.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/build_info.h"
#include "server/grpc_server.h"
#include "server/http/exchange_server.h"
#include "server/http/http_server.h"
#include "server/openai_server.h"
#include "server/report_flags.h"

namespace nibble {

using base::StrCat;

namespace {
constexpr int kFilesPerConnection = 2;  // a socket, and files that its calls open
constexpr rlim_t kOwnFiles = 256;       // for jobs, models and the database
}  // namespace

absl::StatusOr<kernels::Isa> PickIsa(const std::string& flag) {
  const kernels::Isa best = kernels::DetectIsa();
  if (flag == "auto") return best;
  const auto wanted = kernels::ParseIsa(flag);
  if (!wanted.has_value())
    return absl::InvalidArgumentError(StrCat("--isa: \"", flag, "\", wanted auto, plain, avx2 or avx512"));
  if (*wanted > best)
    return absl::InvalidArgumentError(StrCat("--isa: this machine has no ", flag, ", only ", kernels::Name(best)));
  return *wanted;
}

absl::Status CheckFlags(const AppOptions& options) {
  if (options.device != "auto" && options.device != "cpu") {
    // CUDA kernels are built and tested, but neither serving nor the trainers use them yet.
    return absl::InvalidArgumentError(StrCat("--device: \"", options.device,
                                             "\" is not supported, wanted auto or cpu: this nibbled serves and trains "
                                             "only on \"cpu\" (CUDA toolkit of its kernels: ",
                                             BuiltFrom().cuda, ")"));
  }
  NIBBLE_RETURN_IF_ERROR(PickTransport(options).status());
  NIBBLE_RETURN_IF_ERROR(CheckReportFlags(options));
  NIBBLE_RETURN_IF_ERROR(CheckOpenAiFlags(options));
  if (options.import_root.empty() || access(options.import_root.c_str(), R_OK | X_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("--import_root: ", options.import_root, " cannot be read"));
}

// A flood of connections must not take the open files that jobs need (CVE-2023-4785).
void RaiseOpenFiles(const AppOptions& options) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto wanted = static_cast<rlim_t>(options.max_connections) * kFilesPerConnection +
                      http::HttpLimits().max_connections +
                      (options.openai.address.empty() ? 0 : http::ExchangeLimits().max_connections) + kOwnFiles;
  if (limit.rlim_cur >= wanted) return;
  rlimit raised = limit;
  raised.rlim_cur = std::min(limit.rlim_max, wanted);
  if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  if (limit.rlim_cur < wanted) {
    base::LogWarning("the limit of open files is low", {{"limit", limit.rlim_cur}, {"wanted", wanted}});
  }
}

}  // namespace nibble
