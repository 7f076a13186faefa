// Owner of a request id. Clients choose ids freely, so the same id of another caller is another request.
#pragma once
#include <compare>
#include <string>

#include "server/auth/principals.h"
#include "server/base/ids.h"

namespace nibble::auth {

// The same name in two tenants is two owners (SECURITY.md). Without a token file every caller is base::kUnnamedCaller,
// and ids are shared.
struct RequestOwner {
  std::string tenant;                       // "": none
  std::string name = base::kUnnamedCaller;  // name of the principal
  auto operator<=>(const RequestOwner&) const = default;
};

// Whether this principal may see and stop the requests of all others: an admin without a tenant.
inline bool SeesAll(const Principal& principal) { return principal.role == Role::kAdmin && principal.tenant.empty(); }

inline RequestOwner OwnerOf(const Principal& principal) { return {principal.tenant, principal.name}; }

// Principals with the same key share turns and limits: "tenant/name", or the name without a tenant. Without a
// token file the key is "": all callers count as one, and only the server's own limits apply.
inline std::string FairnessKey(const Principal& principal) {
  if (principal.name == base::kUnnamedCaller) return "";
  return principal.tenant.empty() ? principal.name : principal.tenant + "/" + principal.name;
}

}  // namespace nibble::auth
