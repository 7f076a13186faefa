// Metadata by which a listener of another protocol tells the gRPC API, in the same process, who its client is.
#pragma once

namespace nibble::auth {

// Without the secret of Authority::forward_secret(), the other keys have no effect.
inline constexpr char kForwardSecretKey[] = "x-nibble-forward-secret";
inline constexpr char kForwardPeerKey[] = "x-nibble-forward-peer";
inline constexpr char kForwardNameKey[] = "x-nibble-forward-name-bin";  // of the client's certificate; may repeat

}  // namespace nibble::auth
