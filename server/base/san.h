// Names of certificates (subject alternative names), as a line of a token file gives them:
// "uri:spiffe://example.org/ci".
#pragma once
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>

namespace nibble::base {

inline constexpr std::size_t kMaxSanBytes = 512;

// Whether the name has at most kMaxSanBytes and begins with its kind: uri:, dns:, email: or ip:, in lower case.
inline bool IsSan(std::string_view name) {
  constexpr std::string_view kKinds[] = {"uri:", "dns:", "email:", "ip:"};
  return name.size() <= kMaxSanBytes && std::any_of(std::begin(kKinds), std::end(kKinds),
                                                    [&](std::string_view kind) { return name.starts_with(kind); });
}

}  // namespace nibble::base
