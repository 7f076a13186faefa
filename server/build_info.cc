#include "server/build_info.h"

#include "nibble_build_info.h"

namespace nibble {

// This file holds nothing else, because it is compiled again whenever any source has changed.
BuildSource BuiltFrom() { return {NIBBLE_BUILD_COMMIT, NIBBLE_BUILD_CODE_DIGEST, NIBBLE_BUILD_CUDA}; }

}  // namespace nibble
