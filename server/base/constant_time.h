#pragma once
#include <string_view>

namespace nibble::base {

// Compares secrets. The time it takes depends on the lengths only.
bool EqualInConstantTime(std::string_view a, std::string_view b);

}  // namespace nibble::base
