#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/app.h"
#include "client/cli/command.h"
#include "client/cli/message_json.h"
#include "client/cli/render.h"
#include "client/http_get.h"
#include "google/protobuf/util/time_util.h"
#include "server/base/human_bytes.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::cli {
namespace {

using google::protobuf::util::TimeUtil;
using v1::ServerService;

constexpr double kProbeTimeoutSeconds = 5;  // without --timeout: a probe must not hang

absl::Status Info(Session& session) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ServerInfo info,
                          session.client().Call(&ServerService::Stub::GetServerInfo, v1::GetServerInfoRequest()));
  if (session.json) {
    session.Print(ServerInfoJson(info));
    return absl::OkStatus();
  }
  Table table({"version", base::StrCat(info.version(), " ", info.commit())});
  table.Add({"code", info.code_digest()});
  table.Add({"CUDA toolkit", info.cuda_version()});
  for (const auto& device : info.devices()) {
    table.Add({"device", base::StrCat(Lower(device.device().kind()), " ", device.name(), " (", device.isa(), "), ",
                                      base::HumanBytes(device.memory_total_bytes()))});
  }
  table.Add({"threads", base::StrCat(info.threads())});
  std::string trainers = info.runner();
  if (!info.kubernetes_namespace().empty()) absl::StrAppend(&trainers, ", namespace ", info.kubernetes_namespace());
  if (!info.kubernetes_queue().empty()) absl::StrAppend(&trainers, ", queue ", info.kubernetes_queue());
  table.Add({"trainers run", trainers});
  table.Add({"trains", absl::StrJoin(info.job_methods(), ", ")});
  table.Add({"serves", absl::StrJoin(info.serve_formats(), ", ")});
  table.Add({"converts to", absl::StrJoin(info.convert_formats(), ", ")});
  table.Add({"exports", absl::StrJoin(info.export_formats(), ", ")});
  table.Print(session.out());
  return absl::OkStatus();
}

absl::Status Load(Session& session) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ServerLoad load,
                          session.client().Call(&ServerService::Stub::GetLoad, v1::GetLoadRequest()));
  if (session.json) {
    session.Print(ServerLoadJson(load));
    return absl::OkStatus();
  }
  Table table({"requests", base::StrCat(load.requests_running(), " running, ", load.requests_waiting(), " waiting")});
  table.Add({"KV blocks", base::StrCat(load.kv_blocks_used(), " of ", load.kv_blocks_total())});
  table.Add({"jobs", base::StrCat(load.jobs_running(), " running, ", load.jobs_queued(), " queued")});
  table.Add({"memory", base::HumanBytes(load.rss_bytes())});
  for (const auto& model : load.residents().models()) {
    table.Add({"loaded",
               base::StrCat(model.name(), " (", Lower(model.format()), ", ", base::HumanBytes(model.bytes()), ")")});
  }
  table.Print(session.out());
  return absl::OkStatus();
}

absl::Status Drain(Session& session, const std::optional<double>& deadline_s) {
  v1::DrainRequest request;
  if (deadline_s.has_value()) {
    *request.mutable_deadline() = TimeUtil::MillisecondsToDuration(std::llround(*deadline_s * 1000));
  }
  NIBBLE_RETURN_IF_ERROR(session.client().Call(&ServerService::Stub::Drain, request).status());
  if (session.json) {
    session.Print({{"draining", true}});
  } else {
    session.out() << "draining\n";
  }
  return absl::OkStatus();
}

absl::Status SayReady(Session& session) {
  if (session.json) {
    session.Print({{"ready", true}});
  } else {
    session.out() << "ready\n";
  }
  return absl::OkStatus();
}

// Over HTTP, which needs neither a token nor TLS: for the probe of a container.
absl::Status HealthByHttp(Session& session, const std::string& address) {
  const absl::Duration timeout = absl::Seconds(session.timeout_s > 0 ? session.timeout_s : kProbeTimeoutSeconds);
  const absl::StatusOr<client::HttpReply> answer = client::HttpGet(address, "/readyz", timeout);
  if (!answer.ok())
    return absl::Status(answer.status().code(), base::StrCat("--http: ", base::ToStd(answer.status().message())));
  if (answer->status != 200) {
    return absl::UnavailableError(
        base::StrCat("not ready: http://", address, "/readyz (--http) answers: ", answer->body));
  }
  return SayReady(session);
}

// Over gRPC, like every other command: for use from another machine.
absl::Status HealthByGrpc(Session& session) {
  using grpc::health::v1::HealthCheckResponse;
  const grpc::health::v1::HealthCheckRequest whole_server;
  NIBBLE_ASSIGN_OR_RETURN(const HealthCheckResponse answer,
                          session.client().Call(&grpc::health::v1::Health::Stub::Check, whole_server));
  if (answer.status() == HealthCheckResponse::SERVING) return SayReady(session);
  return absl::UnavailableError(base::StrCat("not ready: ", HealthCheckResponse::ServingStatus_Name(answer.status())));
}

}  // namespace

void AddServerCommands(CLI::App& app, Session& session) {
  CLI::App& server = *app.add_subcommand("server", "Inspect and drain the server");
  server.require_subcommand(1);
  AddCommand(server, session, "info", "Show the version, devices and capabilities of the server", &Info);
  {
    CLI::App* sub =
        server.add_subcommand("drain", "Refuse new calls and let running ones end; jobs continue after a restart");
    auto deadline = std::make_shared<std::optional<double>>();
    sub->add_option("--deadline", *deadline, "Seconds that running calls may still take (default: nibbled's --drain_s)")
        ->check(CLI::Range(0.0, 3600.0));
    sub->callback(
        [&session, deadline] { session.command = [&session, deadline] { return Drain(session, *deadline); }; });
  }
  {
    CLI::App* sub = app.add_subcommand("health", "Check that the server is ready: exit 0 only if it is");
    auto address = std::make_shared<std::string>("127.0.0.1:9464");
    auto by_grpc = std::make_shared<bool>(false);
    CLI::Option* http = sub->add_option("--http", *address, "HOST:PORT of nibbled's --http_address; ignores --server")
                            ->capture_default_str();
    sub->add_flag("--grpc", *by_grpc,
                  "Check --server over gRPC (grpc.health.v1), with the connection options; default if --server or "
                  "NIBBLE_SERVER is set, unless --http is given")
        ->excludes(http);
    sub->callback([&app, &session, address, by_grpc, http] {
      const bool asks_server = *by_grpc || (app.get_option("--server")->count() > 0 && http->count() == 0);
      session.command = [&session, address, asks_server] {
        return asks_server ? HealthByGrpc(session) : HealthByHttp(session, *address);
      };
    });
  }
  AddCommand(server, session, "load", "Show the current load of the server", &Load);
}

}  // namespace nibble::cli
