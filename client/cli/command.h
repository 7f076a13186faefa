// What several commands have in common: an argument, a list over all its pages, a deletion.
#pragma once
#include <memory>
#include <string>

#include "client/cli/session.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace CLI {
class App;
}

namespace nibble::cli {

// A command without arguments.
void AddCommand(CLI::App& group, Session& session, const char* command, const char* help, absl::Status (*run)(Session&));

// A command whose one argument says what it is about: `argument` "NAME", `what` "Model".
void AddCommandOn(CLI::App& group, Session& session, const char* command, const char* help, const char* argument, const char* what,
                  absl::Status (*run)(Session&, const std::string&));

// The option --no-wait of a command that begins an operation.
std::shared_ptr<bool> AddNoWait(CLI::App& command);

// What a list shows: `json` under `key`, or the table.
void PrintList(Session& session, const char* key, base::Json json, const Table& table);

// Asks for page after page, from `request` on, until there is none or `on_page(page)` says false: enough.
template <typename Stub, typename Request, typename Response, typename OnPage>
absl::Status ForEachPage(Session& session, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                         Request request, OnPage on_page) {
  while (true) {
    NIBBLE_ASSIGN_OR_RETURN(const Response page, session.client().Call(method, request));
    if (!on_page(page) || page.next_page_token().empty()) return absl::OkStatus();
    if (page.next_page_token() == request.page_token()) return absl::DataLossError("malformed answer: the pages do not end");
    request.set_page_token(page.next_page_token());
  }
}

// Deletes what `name` names and says so; `key` is what JSON calls it.
template <typename Stub, typename Request, typename Response>
absl::Status DeleteNamed(Session& session, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                         const char* key, const std::string& name) {
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
