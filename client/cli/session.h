// What a command has while it runs: the user's terminal, the global options and the connection.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "client/cli/connection.h"
#include "client/cli/terminal.h"
#include "client/client.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"

namespace nibble::cli {

using Connect = std::function<client::Client(const std::string& server, const client::ClientOptions& options)>;

class Session {
 public:
  Session(Terminal& the_terminal, Connect connect) : terminal(the_terminal), connect_(std::move(connect)) {}

  client::Client& client();
  // Reads what the flags of the connection name. Before `command` runs.
  absl::Status Prepare();
  // As Client::Wait and WaitForEnd with `progress` shown. Meanwhile Ctrl-C says that the operation goes on, and how to see it again.
  template <typename Response>
  absl::StatusOr<Response> Wait(google::longrunning::Operation operation, Progress& progress) {
    const Note note(*this, operation);
    return client().Wait<Response>(std::move(operation), progress.Show());
  }
  absl::Status WaitForEnd(google::longrunning::Operation& operation, Progress& progress) {
    const Note note(*this, operation);
    return client().WaitForEnd(operation, progress.Show());
  }
  // From now on Ctrl-C says that the job goes on, and how to see it again.
  void JobGoesOn(const std::string& job);
  // One line on stdout.
  void Print(const base::Json& json) { terminal.out << base::Dump(json) << '\n' << std::flush; }
  std::ostream& out() { return terminal.out; }

  Terminal& terminal;
  // Global options.
  std::string server = "127.0.0.1:50051";
  ConnectionFlags connection;
  bool json = false;
  double timeout_s = 0;  // 0: as ClientOptions
  // Set by the command that the arguments name.
  std::function<absl::Status()> command;

 private:
  // What Ctrl-C says as long as this is there.
  class Note {
   public:
    Note(Session& session, const google::longrunning::Operation& operation);
    ~Note();
    Note(const Note&) = delete;
    Note& operator=(const Note&) = delete;

   private:
    InterruptNote* note_;
  };

  Connect connect_;
  client::Security security_;
  std::optional<client::Client> client_;
};

// A random UUID (version 4).
std::string NewUuid();
// Shows an operation as `operations get` does.
void PrintOperation(Session& session, const google::longrunning::Operation& operation);

// Begins an operation under an id of its own, and gives its response once it has ended; with `no_wait` it shows the operation and gives
// nothing.
template <typename Response, typename Stub, typename Request>
absl::StatusOr<std::optional<Response>> RunOperation(
    Session& session, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, google::longrunning::Operation*), Request request,
    bool no_wait) {
  request.set_request_id(NewUuid());
  NIBBLE_ASSIGN_OR_RETURN(google::longrunning::Operation operation, session.client().Call(method, request));
  if (no_wait) {
    PrintOperation(session, operation);
    return std::optional<Response>();
  }
  Progress progress(session.terminal);
  NIBBLE_ASSIGN_OR_RETURN(Response response, session.Wait<Response>(std::move(operation), progress));
  progress.End();
  return std::optional<Response>(std::move(response));
}

// The user's text for a string field: InvalidArgument when it is not UTF-8, which no proto can carry.
absl::Status CheckText(std::string_view field, std::string_view text);
// The file's content, at most 64 MiB, as text.
absl::StatusOr<std::string> ReadText(std::string_view field, const std::string& path);
// "auto", "cpu", "cuda:N".
absl::StatusOr<v1::Device> ParseDevice(std::string_view field, const std::string& text);
// An upload that failed with this status may be resumable: names the option that resumes it.
absl::Status WithResumeHint(const absl::Status& status, const std::string& upload_id);
}  // namespace nibble::cli
