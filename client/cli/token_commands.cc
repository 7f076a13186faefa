// tokens new: creates a client's token and its line for nibbled's --token_file. Needs no server.
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "client/cli/app.h"
#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/san.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::cli {
namespace {

// Lets scanners for leaked secrets recognize a token.
constexpr char kPrefix[] = "nbl_";

struct NewToken {
  std::string name;
  std::string role;
  std::string tenant;
  std::string san;
  std::string out;
  double days = 90;
};

// 256 random bits: enough that a plain hash of the token cannot be reversed by search.
absl::StatusOr<std::string> RandomToken() {
  char bytes[32];
  if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
    return absl::InternalError("cannot read random bytes");
  }
  std::string text;
  absl::WebSafeBase64Escape({bytes, sizeof bytes}, &text);
  return kPrefix + text;
}

// Never overwrites an existing file.
absl::Status WriteSecret(const std::string& path, const std::string& token) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return base::FieldError("--out", base::StrCat("cannot create ", path, ": ", std::strerror(errno)));
  const std::string line = token + "\n";
  const bool good = ::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size()) && ::fsync(fd) == 0;
  if (::close(fd) == 0 && good) return absl::OkStatus();
  ::unlink(path.c_str());
  return absl::InternalError(base::StrCat("cannot write ", path));
}

// Returns the name with its kind in lower case. nibbled rejects a whole token file because of one malformed line, so
// this refuses what server/auth/principals.cc refuses.
absl::StatusOr<std::string> ParseSan(const std::string& text) {
  NIBBLE_RETURN_IF_ERROR(CheckText("--san", text));
  const std::size_t colon = text.find(':');
  std::string san = text;
  if (colon != std::string::npos) san.replace(0, colon, absl::AsciiStrToLower(text.substr(0, colon)));
  if (!base::IsSan(san) || colon + 1 == san.size()) {
    return base::FieldError(
        "--san", base::StrCat("got \"", text.substr(0, base::kMaxSanBytes),
                              "\", wanted a name with its kind, such as uri:spiffe://example.org/ci, "
                              "dns:ci.example.org, email:ci@example.org or ip:192.0.2.7, of at most 512 bytes"));
  }
  return san;
}

absl::Status New(Session& session, const NewToken& given) {
  NIBBLE_RETURN_IF_ERROR(base::CheckPrincipalName("NAME", given.name));
  if (!given.tenant.empty()) NIBBLE_RETURN_IF_ERROR(base::CheckName("--tenant", given.tenant));
  if (given.san.empty() == given.out.empty()) return base::FieldError("--out", "set exactly one of --out and --san");
  base::Json line = base::Json::object();
  line["name"] = given.name;
  line["role"] = given.role;
  if (!given.tenant.empty()) line["tenant"] = given.tenant;
  if (given.days > 0) {
    line["expires"] =
        absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now() + absl::Hours(24) * given.days, absl::UTCTimeZone());
  }
  if (!given.san.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(line["san"], ParseSan(given.san));
  } else {
    NIBBLE_ASSIGN_OR_RETURN(const std::string token, RandomToken());
    NIBBLE_RETURN_IF_ERROR(WriteSecret(given.out, token));
    line["token_sha256"] = base::Sha256Hex(token);
  }
  session.Print(line);
  return absl::OkStatus();
}

}  // namespace

void AddTokenCommands(CLI::App& app, Session& session) {
  CLI::App& tokens = *app.add_subcommand("tokens", "Create tokens for a server that runs with --token_file");
  tokens.require_subcommand(1);
  auto given = std::make_shared<NewToken>();
  CLI::App& add = *tokens.add_subcommand(
      "new", "Create a token and print its line for the server's --token_file; the line holds no secret");
  add.add_option("NAME", given->name, "Owner of the token, as the server's log shows it")->required();
  add.add_option("--role", given->role, "Role; each role includes the rights of the roles before it")
      ->required()
      ->check(CLI::IsMember({"viewer", "infer", "train", "operator", "admin"}));
  add.add_option("--out", given->out, "New file for the token, mode 0600");
  add.add_option("--san", given->san,
                 "Instead of a token: a name in the client's certificate, with the prefix uri:, dns:, email: or ip:");
  add.add_option("--days", given->days, "Days until the line expires; 0: never")
      ->check(CLI::Range(0.0, 36500.0))
      ->capture_default_str();
  add.add_option("--tenant", given->tenant, "Give access only to the jobs and operations of this tenant");
  add.callback([&session, given] { session.command = [&session, given] { return New(session, *given); }; });
}

}  // namespace nibble::cli
