// A fuzz target is one function over untrusted bytes. It is built twice: with libFuzzer (preset `clang`), which
// searches for inputs, and with replay_main.cc (every build), which passes it the committed corpus.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "absl/status/status.h"

// Returns 0. A finding is a crash, a leak, an exception, more than 5 s, or an allocation of more than 256 MiB
// (docs/faults.md).
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace nibble::fuzz {

inline std::string_view Text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Checks an invariant that must hold for any input. If it does not, aborts the process, which both drivers report as a
// finding.
inline void Expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what);
  std::abort();
}

// Checks that a refusal, in the form in which it would be sent, reveals no internals of the server
// (tests/support/leaks.h), apart from text quoted from the input. Accepts OK.
void ExpectClean(const absl::Status& status, std::string_view input);

}  // namespace nibble::fuzz
