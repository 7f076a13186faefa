// A fuzz target is one function over bytes that nobody vouches for. It is built twice: with libFuzzer (preset `fuzz`), which
// looks for inputs, and with replay_main.cc (every build), which feeds it the committed corpus.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "absl/status/status.h"

// Returns 0. A finding is a crash, a leak, an exception, more than 5 s, or more than 256 MiB asked for at once (docs/faults.md).
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace nibble::fuzz {

inline std::string_view Text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// What must hold whatever the input is. Ends the process: both drivers take that for a finding.
inline void Expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what);
  std::abort();
}

// A refusal, as it would go over the wire, tells nothing of the server's inside (tests/support/leaks.h), but what it quotes of the
// input. Nothing is asked of OK.
void ExpectClean(const absl::Status& status, std::string_view input);

}  // namespace nibble::fuzz
