#pragma once
#include <cstdint>
#include <string>

namespace nibble::base {

std::string HumanBytes(std::int64_t bytes);  // "1.2 GiB"; below 1 KiB, "512 B"

}  // namespace nibble::base
