// The token file: who may call, in which role, shown by which secret. It holds hashes, never tokens (docs/formats.md).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/rpc/auth_methods.h"

namespace nibble::rpc {

// The name of who calls where no tokens are asked for.
inline constexpr char kNobody[] = "local";

struct Principal {
  std::string name;    // for the audit log
  Role role = Role::kViewer;
  std::string tenant;  // "": sees the jobs of all
};

// One line of the file.
struct PrincipalEntry {
  Principal principal;
  std::string token_sha256;  // 64 hex digits; "": recognised by its certificate
  std::string san;           // "uri:...", "dns:...", "email:..." or "ip:..." of a client certificate; "": by its token
  absl::Time expires = absl::InfiniteFuture();
};

inline constexpr std::size_t kMaxTokenBytes = 512;
inline constexpr std::uint64_t kMaxTokenFileBytes = 1 << 20;

// Immutable.
class PrincipalTable {
 public:
  // JSON lines {"name", "role", "token_sha256" or "san", "expires"?, "tenant"?}; blank lines and lines that begin with # are
  // skipped. InvalidArgument names the line and what is wrong with it, never its secret.
  static absl::StatusOr<PrincipalTable> Parse(std::string_view text);

  // nullptr: nobody's. An expired entry is found too. The time taken depends on the table's size alone.
  const PrincipalEntry* FindToken(std::string_view token) const;
  // The first entry that one of the certificate's names has.
  const PrincipalEntry* FindCertificate(const std::vector<std::string>& names) const;
  std::size_t size() const { return entries_.size(); }

 private:
  std::vector<PrincipalEntry> entries_;
};

// Compares in a time that depends on the lengths alone.
bool EqualInConstantTime(std::string_view a, std::string_view b);

}  // namespace nibble::rpc
