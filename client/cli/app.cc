#include "client/cli/app.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <sstream>

#include "absl/strings/numbers.h"
#include "client/status.h"
#include "server/base/error.h"
#include "server/base/nearest.h"
#include "server/base/strings.h"

namespace nibble::cli {
namespace {

constexpr char kFooter[] =
    "Exit codes: 0 success, 1 other failure, 2 usage, 3 not found, 4 bad input, 5 server unavailable,\n"
    "6 wrong state or name taken, 7 resource exhausted, 8 cancelled or deadline exceeded,\n"
    "9 token missing or not valid, or role too low.";

constexpr double kMaxTimeoutSeconds = 1e9;  // about 30 years

// Prints for example "error: INVALID_ARGUMENT (FIELD_VIOLATION): qlora.r: is 0, wanted 1 to 4096", then the other
// details of the status.
void PrintError(std::ostream& err, const absl::Status& status) {
  const std::string message(status.message());
  err << "error: " << client::CodeName(status.code());
  const std::string reason = base::Reason(status);
  if (!reason.empty()) err << " (" << Printable(reason) << ")";
  err << ": " << Printable(message) << '\n';
  for (const auto& [key, value] : base::ReasonMetadata(status)) {
    if (key == "field" && message.starts_with(value)) continue;
    err << "  " << Printable(key) << ": " << Printable(value) << '\n';
  }
  for (const client::FieldViolation& violation : client::Violations(status)) {
    if (message.find(violation.description) != std::string::npos && message.starts_with(violation.field)) continue;
    err << "  field " << Printable(violation.field) << ": " << Printable(violation.description) << '\n';
  }
  err << std::flush;
}

void AddCommands(CLI::App& app, Session& session) {
  AddModelCommands(app, session);
  AddDatasetCommands(app, session);
  AddUploadCommands(app, session);
  AddJobCommands(app, session);
  AddInferenceCommands(app, session);
  AddOperationCommands(app, session);
  AddServerCommands(app, session);
  AddTokenCommands(app, session);
}

// Collects the full names of the commands below `app`; `words` is the name of `app` itself.
void Collect(CLI::App& app, const std::string& words, std::vector<std::string>& names) {
  auto below = app.get_subcommands({});
  std::erase_if(below, [](const CLI::App* sub) { return sub->get_name().empty(); });  // option groups are not commands
  if (below.empty()) names.push_back(words);
  for (CLI::App* sub : below) Collect(*sub, base::StrCat(words, words.empty() ? "" : " ", sub->get_name()), names);
}

// Prints what is wrong with the command line, or what --help and --version ask for; returns 0 only for these two. CLI11
// reports a missing command or option before an unknown one, although
// the unknown one is usually that command or option, spelt wrongly.
int UsageError(const CLI::App& app, const CLI::ParseError& error, Terminal& terminal) {
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  if (error.get_exit_code() == 0 || unknown.empty()) return app.exit(error, terminal.out, terminal.err);
  const CLI::App* command = &app;
  std::vector<std::string> options;
  const auto add_options = [&](const CLI::App& source) {
    for (const CLI::Option* option : source.get_options()) {
      for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
    }
  };
  add_options(app);
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    add_options(*command);
  }
  std::vector<std::string> commands;
  for (const CLI::App* sub : command->get_subcommands([](const CLI::App*) { return true; })) {
    if (sub->get_name().empty()) {
      add_options(*sub);  // an option group, which CLI11 keeps as a command without a name
    } else {
      commands.push_back(sub->get_name());
    }
  }

  const std::string& word = unknown.front();
  if (word.starts_with("-")) {
    const std::string name = word.substr(0, word.find('='));
    terminal.err << Printable(base::StrCat("unknown option ", name, base::DidYouMean(name, options)));
  } else if (!commands.empty()) {
    terminal.err << Printable(base::StrCat("unknown command ", word, base::DidYouMean(word, commands)));
  } else if (std::find(options.begin(), options.end(), "--prompt") != options.end()) {
    terminal.err << Printable(
        base::StrCat("unexpected argument ", word, "; give the prompt, in quotes, with --prompt"));
  } else {
    return app.exit(error, terminal.out, terminal.err);
  }
  terminal.err << "\nRun with --help for more information.\n" << std::flush;
  return kExitUsage;
}

int Parsed(std::vector<std::string>& arguments, Terminal& terminal, const Connect& connect) {
  Session session(terminal, connect);
  CLI::App app("Fine-tunes language models in low precision and serves the result.", "nibble");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.fallthrough();  // Global options may also follow the command.
  app.set_version_flag("--version", "nibble " NIBBLE_VERSION, "Print the version of this program");
  app.add_option("--server", session.server, "HOST:PORT of nibbled")->capture_default_str()->envname("NIBBLE_SERVER");
  app.add_flag("--json", session.json, "Print only JSON on stdout");
  app.add_option("--timeout", session.timeout_s,
                 "Maximum seconds per call (default: 60; health over HTTP: 5; no limit for long work)")
      ->check([](const std::string& text) -> std::string {
        double seconds = 0;
        if (absl::SimpleAtod(text, &seconds) && seconds > 0 && seconds <= kMaxTimeoutSeconds) return "";
        return base::StrCat("got ", text, ", wanted seconds above 0, at most ", kMaxTimeoutSeconds);
      });
  AddConnectionFlags(app, session.connection);
  AddCommands(app, session);
  try {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 reads them from the back.
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return UsageError(app, error, terminal) == 0 ? kExitOk : kExitUsage;
  }
  absl::Status status = session.Prepare();
  if (status.ok()) status = session.command();
  terminal.out << std::flush;
  if (!status.ok()) {
    PrintError(terminal.err, status);
    if (base::Reason(status) == "TOKEN_MISSING")
      terminal.err << "  give your token's file with --token-file\n" << std::flush;
    if (session.asked_server() && absl::IsUnavailable(status) && base::Reason(status).empty()) {
      const std::string hint = session.ConnectionHint(status);
      terminal.err << "  server: " << Printable(session.server) << " (--server)" << (hint.empty() ? "" : ": ") << hint
                   << '\n'
                   << std::flush;
    }
    return ExitCode(status);
  }
  if (!terminal.out) {
    terminal.err << "error: INTERNAL: cannot write the output\n";
    return kExitOther;
  }
  return kExitOk;
}

}  // namespace

std::string WholeNumber(const std::string& text) {
  std::int64_t value = 0;
  if (absl::SimpleAtoi(text, &value)) return "";
  return base::StrCat("got ", text, ", wanted a whole number of at most 64 bits");
}

std::vector<std::string> Commands() {
  std::istringstream in;
  std::ostringstream out;
  Terminal terminal{in, out, out};
  Session session(terminal, nullptr);
  CLI::App app;
  AddCommands(app, session);
  std::vector<std::string> names;
  Collect(app, "", names);
  return names;
}

int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return kExitOk;
    case absl::StatusCode::kNotFound: return kExitNotFound;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange: return kExitBadInput;
    case absl::StatusCode::kUnavailable: return kExitUnavailable;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted: return kExitFailedPrecondition;
    case absl::StatusCode::kResourceExhausted: return kExitResourceExhausted;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied: return kExitDenied;
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded: return kExitCancelled;
    default: return kExitOther;
  }
}

int Run(std::vector<std::string> arguments, Terminal& terminal, const Connect& connect) {
  try {
    return Parsed(arguments, terminal, connect);
  } catch (const std::exception& error) {  // bad_alloc, or an invalid use of CLI11.
    terminal.err << "error: INTERNAL: " << Printable(error.what()) << '\n';
    return kExitOther;
  }
}

}  // namespace nibble::cli
