// What this program was built from: told by `nibbled --version`, GetServerInfo, the metric nibble_build_info and Job.digests.
#pragma once

namespace nibble {

inline constexpr char kVersion[] = "0.1.0";

struct BuildSource {
  const char* commit;       // "-dirty" after it where the sources were changed since; "" where it is not known
  const char* code_digest;  // SHA-256 of the sources, lower-case hex (cmake/build_info.sh)
  const char* cuda;         // version of the toolkit that the kernels were built with, "none"
};

BuildSource BuiltFrom();

}  // namespace nibble
