// The sources of this program, as shown by `nibbled --version`, GetServerInfo, nibble_build_info and Job.digests.
#pragma once

namespace nibble {

inline constexpr char kVersion[] = "0.1.0";

struct BuildSource {
  const char* commit;       // with "-dirty" if the sources were changed since; "" if unknown
  const char* code_digest;  // SHA-256 of the sources, lower-case hex (cmake/build_info.sh)
  const char* cuda;         // version of the toolkit that built the kernels, or "none"
};

BuildSource BuiltFrom();

}  // namespace nibble
