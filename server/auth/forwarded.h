// Metadata by which a listener of another protocol tells the gRPC API, in the same process, who its client is.
#pragma once
#include <algorithm>
#include <string_view>

namespace nibble::auth {

// Without the secret of Authority::forward_secret(), the other keys have no effect.
inline constexpr char kForwardSecretKey[] = "x-nibble-forward-secret";
inline constexpr char kForwardPeerKey[] = "x-nibble-forward-peer";
inline constexpr char kForwardNameKey[] = "x-nibble-forward-name-bin";  // of the client's certificate; may repeat

// Whether gRPC can send the text as metadata; gRPC aborts the process for any other text. No token has other bytes.
inline bool IsPrintableAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char byte) { return byte >= 0x20 && byte <= 0x7e; });
}

}  // namespace nibble::auth
