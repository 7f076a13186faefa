// The program `nibble`, as a function.
#pragma once
#include <string>
#include <vector>

#include "client/cli/session.h"

namespace CLI {
class App;
}

namespace nibble::cli {

// Exit codes, part of the contract with scripts.
inline constexpr int kExitOk = 0;
inline constexpr int kExitOther = 1;  // also: rows differ (verify), a watched job that failed
inline constexpr int kExitUsage = 2;  // wrong command line
inline constexpr int kExitNotFound = 3;
inline constexpr int kExitBadInput = 4;            // INVALID_ARGUMENT, OUT_OF_RANGE
inline constexpr int kExitUnavailable = 5;         // no server, or one that drains
inline constexpr int kExitFailedPrecondition = 6;  // also ALREADY_EXISTS, ABORTED
inline constexpr int kExitResourceExhausted = 7;
inline constexpr int kExitCancelled = 8;  // also DEADLINE_EXCEEDED, a watched job that was cancelled
inline constexpr int kExitDenied = 9;     // UNAUTHENTICATED, PERMISSION_DENIED

int ExitCode(const absl::Status& status);

// Names of all commands, for example "models import", "generate".
std::vector<std::string> Commands();

// Runs one command and returns its exit code; `arguments` without the program's name. Never throws.
int Run(std::vector<std::string> arguments, Terminal& terminal, const Connect& connect);

// For CLI11's check(): returns "" if the text is a whole number that fits in 64 bits, else an error text. Without this
// check, CLI11 replaces a larger number by the nearest one that fits.
std::string WholeNumber(const std::string& text);

// Each function adds its commands. The command that the user gives sets session.command. The session must outlive
// `app`.
void AddModelCommands(CLI::App& app, Session& session);
void AddCompareCommand(CLI::App& models, Session& session);
void AddDatasetCommands(CLI::App& app, Session& session);
void AddLogsCommand(CLI::App& jobs, Session& session);
void AddJobCommands(CLI::App& app, Session& session);
void AddInferenceCommands(CLI::App& app, Session& session);
void AddOperationCommands(CLI::App& app, Session& session);
void AddServerCommands(CLI::App& app, Session& session);
void AddUploadCommands(CLI::App& app, Session& session);
void AddTokenCommands(CLI::App& app, Session& session);

}  // namespace nibble::cli
