#include <CLI/CLI.hpp>

#include "absl/strings/str_join.h"
#include "client/cli/app.h"
#include "client/cli/message_json.h"
#include "client/cli/render.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::cli {
namespace {

using v1::ServerService;

absl::Status Info(Session& session) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::ServerInfo info,
                          session.client().Call(&ServerService::Stub::GetServerInfo, v1::GetServerInfoRequest()));
  if (session.json) {
    session.Print(ServerInfoJson(info));
    return absl::OkStatus();
  }
  Table table({"version", base::StrCat(info.version(), " ", info.commit())});
  for (const auto& device : info.devices()) {
    table.Add({"device", base::StrCat(Lower(device.device().kind()), " ", device.name(), " (", device.isa(), "), ",
                                      HumanBytes(device.memory_total_bytes()))});
  }
  table.Add({"threads", base::StrCat(info.threads())});
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
  table.Add({"memory", HumanBytes(load.rss_bytes())});
  for (const auto& model : load.residents().models()) {
    table.Add(
        {"loaded", base::StrCat(model.name(), " (", Lower(model.format()), ", ", HumanBytes(model.bytes()), ")")});
  }
  table.Print(session.out());
  return absl::OkStatus();
}

}  // namespace

void AddServerCommands(CLI::App& app, Session& session) {
  CLI::App& server = *app.add_subcommand("server", "The server itself");
  server.require_subcommand(1);
  server.add_subcommand("info", "What it is and can do")->callback([&session] {
    session.command = [&session] { return Info(session); };
  });
  server.add_subcommand("load", "How busy it is")->callback([&session] {
    session.command = [&session] { return Load(session); };
  });
}

}  // namespace nibble::cli
