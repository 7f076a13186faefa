// Converts times between absl and protobuf.
#pragma once
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace nibble::rpc {

inline google::protobuf::Timestamp ToProto(absl::Time time) {
  google::protobuf::Timestamp out;
  const std::int64_t nanos = absl::ToUnixNanos(time);
  out.set_seconds(nanos / 1'000'000'000);
  out.set_nanos(static_cast<std::int32_t>(nanos % 1'000'000'000));
  return out;
}

// Durations beyond protobuf's limit of 10,000 years (duration.proto) are cut to the limit.
inline google::protobuf::Duration ToProto(absl::Duration duration) {
  const absl::Duration longest = absl::Seconds(std::int64_t{315'576'000'000});
  duration = std::clamp(duration, -longest, longest);
  google::protobuf::Duration out;
  out.set_seconds(duration / absl::Seconds(1));
  out.set_nanos(static_cast<std::int32_t>((duration % absl::Seconds(1)) / absl::Nanoseconds(1)));
  return out;
}

inline absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

}  // namespace nibble::rpc
