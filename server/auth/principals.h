// The token file: the principals, their roles, and the hashes of their tokens. It never holds tokens (docs/formats.md).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/auth/method_rules.h"

namespace nibble::auth {

struct Principal {
  std::string name;  // owns requests and shares limits (request_owner.h); shown in logs
  Role role = Role::kViewer;
  std::string tenant;  // "": sees the jobs of all tenants
};

// One line of the file.
struct PrincipalEntry {
  Principal principal;
  std::string token_sha256;  // 64 hex digits; "": the principal has a certificate
  std::string san;           // "uri:...", "dns:...", "email:..." or "ip:..." of its certificate; "": it has a token
  absl::Time expires = absl::InfiniteFuture();
};

inline constexpr std::size_t kMaxTokenBytes = 512;
inline constexpr std::uint64_t kMaxTokenFileBytes = 1 << 20;

// Immutable.
class PrincipalTable {
 public:
  // JSON lines {"name", "role", "token_sha256" or "san", "expires"?, "tenant"?}; blank lines and lines that begin with
  // # are skipped. InvalidArgument names the line and what is wrong with it, never its secret.
  static absl::StatusOr<PrincipalTable> Parse(std::string_view text);

  // nullptr: unknown token. Finds expired entries too. The time it takes depends on the table's size only.
  const PrincipalEntry* FindToken(std::string_view token) const;
  // The first entry whose san is one of the certificate's names. nullptr if no entry matches.
  const PrincipalEntry* FindCertificate(const std::vector<std::string>& names) const;
  std::size_t size() const { return entries_.size(); }

 private:
  std::vector<PrincipalEntry> entries_;
};

}  // namespace nibble::auth
