#pragma once
#include <cstdint>
#include <string>

namespace nibble::base {

std::string HumanBytes(std::int64_t bytes);  // "1.2 GiB"

}  // namespace nibble::base
