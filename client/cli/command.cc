#include "client/cli/command.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <utility>

#include "absl/time/time.h"

namespace nibble::cli {

void AddCommand(CLI::App& group, Session& session, const char* command, const char* help,
                absl::Status (*run)(Session&)) {
  group.add_subcommand(command, help)->callback([&session, run] {
    session.command = [&session, run] { return run(session); };
  });
}

void AddCommandOn(CLI::App& group, Session& session, const char* command, const char* help, const char* argument,
                  const char* what, absl::Status (*run)(Session&, const std::string&)) {
  CLI::App* sub = group.add_subcommand(command, help);
  auto value = std::make_shared<std::string>();
  sub->add_option(argument, *value, what)->required();
  sub->callback([&session, value, run] { session.command = [&session, value, run] { return run(session, *value); }; });
}

std::shared_ptr<bool> AddNoWait(CLI::App& command) {
  auto no_wait = std::make_shared<bool>(false);
  command.add_flag("--no-wait", *no_wait, "Print the operation instead of waiting for its end");
  return no_wait;
}

std::string WaitsForTheServer() {
  return base::StrCat("waits up to ", absl::ToInt64Minutes(client::ClientOptions().reconnect_for),
                      " minutes for a server that is away");
}

void PrintList(Session& session, const char* key, base::Json json, const Table& table) {
  if (session.json) return session.Print({{key, std::move(json)}});
  table.Print(session.out());
}

}  // namespace nibble::cli
