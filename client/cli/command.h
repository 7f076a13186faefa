// Shared parts of commands: arguments, paged lists, deletion.
#pragma once
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/session.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace CLI {
class App;
}

namespace nibble::cli {

// Adds a command without arguments.
void AddCommand(CLI::App& group, Session& session, const char* command, const char* help,
                absl::Status (*run)(Session&));

// Adds a command with one argument: `argument` is its name ("NAME"), `what` its help text ("Model").
void AddCommandOn(CLI::App& group, Session& session, const char* command, const char* help, const char* argument,
                  const char* what, absl::Status (*run)(Session&, const std::string&));

// The complete answer to a request with one output. With `chat`, the input is a conversation (method Chat). DataLoss if
// the answer is malformed.
absl::StatusOr<v1::GenerateResponse> WholeAnswer(Session& session, const v1::GenerateRequest& request, bool chat);

// Adds the option --no-wait to a command that starts an operation.
std::shared_ptr<bool> AddNoWait(CLI::App& command);

// How long a watch waits for a server that is away: the end of a help text.
std::string WaitsForTheServer();

// Prints a list: with --json, `json` under `key`; else the table.
void PrintList(Session& session, const char* key, base::Json json, const Table& table);

// Requests one page after the other, starting with `request`, until the last page or until `on_page(page)` returns
// false.
template <typename Stub, typename Request, typename Response, typename OnPage>
absl::Status ForEachPage(Session& session,
                         grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*), Request request,
                         OnPage on_page) {
  while (true) {
    NIBBLE_ASSIGN_OR_RETURN(const Response page, session.client().Call(method, request));
    if (!on_page(page) || page.next_page_token().empty()) return absl::OkStatus();
    if (page.next_page_token() == request.page_token()) {
      return absl::DataLossError("malformed response: next_page_token repeats");
    }
    request.set_page_token(page.next_page_token());
  }
}

// Deletes the resource `name` and reports it; `key` is its key in the JSON output.
template <typename Stub, typename Request, typename Response>
absl::Status DeleteNamed(Session& session,
                         grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*), const char* key,
                         const std::string& name) {
  NIBBLE_RETURN_IF_ERROR(CheckText(key, name));
  Request request;
  request.set_name(name);
  NIBBLE_RETURN_IF_ERROR(session.client().Call(method, request).status());
  if (session.json) {
    session.Print({{key, name}, {"deleted", true}});
  } else {
    session.out() << "deleted " << name << '\n';
  }
  return absl::OkStatus();
}

}  // namespace nibble::cli
