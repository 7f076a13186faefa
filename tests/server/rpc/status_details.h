// Access to the details of a google.rpc.Status.
#pragma once
#include <optional>

#include "google/rpc/status.pb.h"

namespace nibble::testing_support {

// The first detail of this type.
template <typename T>
std::optional<T> Find(const google::rpc::Status& status) {
  for (const auto& detail : status.details()) {
    T message;
    if (detail.UnpackTo(&message)) return message;
  }
  return std::nullopt;
}

}  // namespace nibble::testing_support
