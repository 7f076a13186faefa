#include "server/auth/principals.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "server/base/constant_time.h"
#include "server/base/ids.h"
#include "server/base/json.h"
#include "server/base/san.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::auth {

namespace {

using base::StrCat;

constexpr std::size_t kMaxEntries = 10'000;
constexpr const char* kKeys[] = {"name", "role", "token_sha256", "san", "expires", "tenant"};

absl::Status Wrong(const std::string& where, const std::string& what) {
  return absl::InvalidArgumentError(StrCat(where, ": ", what));
}

absl::StatusOr<PrincipalEntry> ParseEntry(std::string_view line, const std::string& where) {
  auto json = base::ParseJson(line);
  // Do not pass on the parser's message: it quotes the text, which may hold a misplaced token.
  if (!json.ok() || !json->is_object()) return Wrong(where, "is not a JSON object");
  for (const auto& [key, value] : json->items()) {
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys))
      return Wrong(where, "has an unknown key");
  }
  PrincipalEntry entry;
  NIBBLE_ASSIGN_OR_RETURN(entry.principal.name, base::GetString(*json, "name", where));
  NIBBLE_RETURN_IF_ERROR(base::CheckPrincipalName(StrCat(where, ": name"), entry.principal.name));
  NIBBLE_ASSIGN_OR_RETURN(const std::string role, base::GetString(*json, "role", where));
  const auto known = ParseRole(role);
  if (!known.has_value()) return Wrong(where, "role: wanted viewer, infer, train, operator or admin");
  entry.principal.role = *known;
  NIBBLE_ASSIGN_OR_RETURN(entry.principal.tenant, base::GetString(*json, "tenant", where, ""));
  if (!entry.principal.tenant.empty()) {
    NIBBLE_RETURN_IF_ERROR(base::CheckName(StrCat(where, ": tenant"), entry.principal.tenant));
  }
  NIBBLE_ASSIGN_OR_RETURN(entry.token_sha256, base::GetString(*json, "token_sha256", where, ""));
  NIBBLE_ASSIGN_OR_RETURN(entry.san, base::GetString(*json, "san", where, ""));
  if (entry.token_sha256.empty() == entry.san.empty()) return Wrong(where, "wanted token_sha256 or san, and not both");
  if (!entry.token_sha256.empty() && (entry.token_sha256.size() != 64 ||
                                      entry.token_sha256.find_first_not_of("0123456789abcdef") != std::string::npos)) {
    return Wrong(where, "token_sha256: wanted 64 lower-case hex digits");
  }
  if (!entry.san.empty() && !base::IsSan(entry.san)) {
    return Wrong(where, "san: wanted uri:, dns:, email: or ip: and a name");
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string expires, base::GetString(*json, "expires", where, ""));
  std::string error;
  if (!expires.empty() && !absl::ParseTime(absl::RFC3339_full, expires, &entry.expires, &error)) {
    return Wrong(where, "expires: wanted a time such as 2030-01-31T00:00:00Z");
  }
  return entry;
}

}  // namespace

absl::StatusOr<PrincipalTable> PrincipalTable::Parse(std::string_view text) {
  PrincipalTable table;
  std::set<std::string> secrets;
  int number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = std::min(text.find('\n'), text.size());
    const absl::string_view line = absl::StripAsciiWhitespace(base::ToAbsl(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    const std::string where = StrCat("line ", number);
    NIBBLE_ASSIGN_OR_RETURN(PrincipalEntry entry, ParseEntry(base::ToStd(line), where));
    if (!secrets.insert(entry.token_sha256 + entry.san).second) {
      return Wrong(where, "repeats the token or san of an earlier line");
    }
    if (table.entries_.size() == kMaxEntries) {
      return Wrong(where, StrCat("exceeds the limit of ", kMaxEntries, " principals"));
    }
    table.entries_.push_back(std::move(entry));
  }
  return table;
}

const PrincipalEntry* PrincipalTable::FindToken(std::string_view token) const {
  const std::string digest = base::Sha256Hex(token);
  const PrincipalEntry* found = nullptr;
  for (const PrincipalEntry& entry : entries_) {
    if (base::EqualInConstantTime(entry.token_sha256, digest)) found = &entry;  // no early exit: constant time
  }
  return found;
}

const PrincipalEntry* PrincipalTable::FindCertificate(const std::vector<std::string>& names) const {
  for (const PrincipalEntry& entry : entries_) {
    if (!entry.san.empty() && std::find(names.begin(), names.end(), entry.san) != names.end()) return &entry;
  }
  return nullptr;
}

}  // namespace nibble::auth
