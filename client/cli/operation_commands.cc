#include <CLI/CLI.hpp>

#include "client/cli/app.h"
#include "client/cli/command.h"
#include "client/cli/message_json.h"
#include "client/cli/render.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::cli {
namespace {

using google::longrunning::Operation;
using google::longrunning::Operations;

std::string StateOf(const Operation& operation) {
  if (!operation.done()) return "running";
  return operation.has_error() ? "failed" : "done";
}

v1::ModelOperationMetadata MetadataOf(const Operation& operation) {
  v1::ModelOperationMetadata metadata;
  if (operation.has_metadata()) operation.metadata().UnpackTo(&metadata);  // other kinds have nothing to show
  return metadata;
}

base::Json OperationJson(const Operation& operation) {
  const v1::ModelOperationMetadata metadata = MetadataOf(operation);
  base::Json json;
  json["id"] = operation.name();
  json["kind"] = metadata.kind();
  json["model"] = metadata.model();
  json["state"] = StateOf(operation);
  json["stage"] = metadata.stage();
  json["done"] = metadata.done();
  json["total"] = metadata.total();
  json["error"] = nullptr;
  if (operation.has_error()) {
    const absl::Status error = client::FromProto(operation.error());
    json["error"] = {{"code", client::CodeName(error.code())}, {"message", std::string(error.message())}};
  }
  return json;
}

absl::StatusOr<Operation> Find(Session& session, const std::string& id) {
  NIBBLE_RETURN_IF_ERROR(CheckText("id", id));
  google::longrunning::GetOperationRequest request;
  request.set_name(id);
  return session.client().Call(&Operations::Stub::GetOperation, request);
}

absl::Status PrintOperations(Session& session) {
  base::Json list = base::Json::array();
  Table table({"ID", "KIND", "MODEL", "STATE", "STAGE", "DONE"});
  const google::longrunning::ListOperationsRequest all;
  NIBBLE_RETURN_IF_ERROR(ForEachPage(session, &Operations::Stub::ListOperations, all, [&](const auto& page) {
    for (const Operation& operation : page.operations()) {
      const v1::ModelOperationMetadata metadata = MetadataOf(operation);
      list.push_back(OperationJson(operation));
      table.Add({operation.name(), metadata.kind(), metadata.model(), StateOf(operation), metadata.stage(),
                 base::StrCat(metadata.done(), " of ", metadata.total())});
    }
    return true;
  }));
  PrintList(session, "operations", std::move(list), table);
  return absl::OkStatus();
}

absl::Status PrintNamed(Session& session, const std::string& id) {
  NIBBLE_ASSIGN_OR_RETURN(const Operation operation, Find(session, id));
  PrintOperation(session, operation);
  return absl::OkStatus();
}

absl::Status Wait(Session& session, const std::string& id) {
  NIBBLE_ASSIGN_OR_RETURN(Operation operation, Find(session, id));
  Progress progress(session.terminal);
  NIBBLE_RETURN_IF_ERROR(session.WaitForEnd(operation, progress));
  progress.End();
  PrintOperation(session, operation);
  return absl::OkStatus();
}

absl::Status Cancel(Session& session, const std::string& id) {
  NIBBLE_RETURN_IF_ERROR(CheckText("id", id));
  google::longrunning::CancelOperationRequest request;
  request.set_name(id);
  NIBBLE_RETURN_IF_ERROR(session.client().Call(&Operations::Stub::CancelOperation, request).status());
  return PrintNamed(session, id);
}

}  // namespace

void PrintOperation(Session& session, const Operation& operation) {
  if (session.json) return session.Print(OperationJson(operation));
  const v1::ModelOperationMetadata metadata = MetadataOf(operation);
  Table table({"id", operation.name()});
  if (!metadata.kind().empty()) table.Add({"kind", metadata.kind()});
  if (!metadata.model().empty()) table.Add({"model", metadata.model()});
  table.Add({"state", StateOf(operation)});
  if (!metadata.stage().empty()) {
    table.Add({"stage", base::StrCat(metadata.stage(), " ", metadata.done(), " of ", metadata.total())});
  }
  if (operation.has_error()) table.Add({"error", operation.error().message()});
  table.Print(session.out());
}

void AddOperationCommands(CLI::App& app, Session& session) {
  CLI::App& operations = *app.add_subcommand(
      "operations",
      "Long operations on the server: imports, conversions, exports, loads, verifications, publications, plans");
  operations.require_subcommand(1);
  AddCommand(operations, session, "list", "List running operations and those that ended within a day",
             &PrintOperations);
  const auto add = [&](const char* command, const char* help, absl::Status (*run)(Session&, const std::string&)) {
    AddCommandOn(operations, session, command, help, "ID", "Operation", run);
  };
  add("get", "Show an operation and its progress", &PrintNamed);
  add("wait", "Wait for the end of an operation; exit 0 only if it succeeded", &Wait);
  add("cancel", "Cancel an operation at its next step and delete its results", &Cancel);
}

}  // namespace nibble::cli
