// Who chose a request id. Clients choose ids freely, so the same id of another caller is another request.
#pragma once
#include <compare>
#include <string>

#include "server/rpc/auth_tokens.h"

namespace nibble::rpc {

// One name in two tenants is two owners (SECURITY.md). Without tokens everyone is kNobody, and ids are shared.
struct RequestOwner {
  std::string tenant;            // "": none
  std::string name = kNobody;    // of the principal
  auto operator<=>(const RequestOwner&) const = default;
};

// An operator: what others sent is his to see and to stop.
inline bool SeesAll(const Principal& principal) { return principal.role == Role::kAdmin && principal.tenant.empty(); }

inline RequestOwner OwnerOf(const Principal& principal) { return {principal.tenant, principal.name}; }

// Of whom turns and bounds are: "tenant/name", or the name where there is no tenant. "" without tokens: everyone is one then, and has
// no bounds but those of the server.
inline std::string FairnessKey(const Principal& principal) {
  if (principal.name == kNobody) return "";
  return principal.tenant.empty() ? principal.name : principal.tenant + "/" + principal.name;
}

}  // namespace nibble::rpc
