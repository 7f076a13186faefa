// State of a running command: the user's terminal, the global options and the connection.
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
  // Whether the command has called client().
  bool asked_server() const { return client_.has_value(); }
  // Advice for a call that ended with Unavailable and without a reason (connection.h).
  std::string ConnectionHint(const absl::Status& status) const { return cli::ConnectionHint(security_, status); }
  // Reads the files that the connection flags name. Call before `command`.
  absl::Status Prepare();
  // Like Client::Wait and WaitForEnd, and shows `progress`. On Ctrl-C meanwhile, the program prints that the operation
  // continues and how to get back to it.
  template <typename Response>
  absl::StatusOr<Response> Wait(google::longrunning::Operation operation, Progress& progress) {
    const Note note(*this, operation);
    return client().Wait<Response>(std::move(operation), progress.Show());
  }
  absl::Status WaitForEnd(google::longrunning::Operation& operation, Progress& progress) {
    const Note note(*this, operation);
    return client().WaitForEnd(operation, progress.Show());
  }
  // From now on the program prints on Ctrl-C that the job continues and how to get back to it.
  void NoteJobContinues(const std::string& job);
  // One line on stdout.
  void Print(const base::Json& json) { terminal.out << base::Dump(json) << '\n' << std::flush; }
  std::ostream& out() { return terminal.out; }

  Terminal& terminal;
  // Global options.
  std::string server = "127.0.0.1:50051";
  ConnectionFlags connection;
  bool json = false;
  double timeout_s = 0;  // 0: the defaults of ClientOptions
  // Set by the command that the user gave.
  std::function<absl::Status()> command;

 private:
  // Sets the text that Ctrl-C prints during the lifetime of this object.
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

// Starts an operation under a new request id and returns its response when it has ended. With `no_wait`, prints the
// operation and returns nullopt.
template <typename Response, typename Stub, typename Request>
absl::StatusOr<std::optional<Response>> RunOperation(Session& session,
                                                     grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                                                  google::longrunning::Operation*),
                                                     Request request, bool no_wait) {
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

// Checks the user's text for a string field: InvalidArgument if it is not UTF-8, because protobuf requires UTF-8.
absl::Status CheckText(std::string_view field, std::string_view text);
// Reads a text file of at most 64 MiB.
absl::StatusOr<std::string> ReadText(std::string_view field, const std::string& path);
// Parses "auto", "cpu", "cuda" or "cuda:N".
absl::StatusOr<v1::Device> ParseDevice(std::string_view field, const std::string& text);
// Adds a hint with the option --resume to an error after which the upload may be resumed. Returns other errors
// unchanged.
absl::Status WithResumeHint(const absl::Status& status, const std::string& upload_id);
}  // namespace nibble::cli
