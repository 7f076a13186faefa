// Detects this machine's instruction sets by CPUID. A flag may force a lower one, never a higher one.
#pragma once
#include <optional>
#include <string_view>

namespace nibble::kernels {

// kAvx2 needs AVX2, FMA and F16C; kAvx512 also needs F, BW, DQ, VL and VNNI.
enum class Isa { kPlain = 0, kAvx2 = 1, kAvx512 = 2 };

Isa DetectIsa();
bool HasBf16Dot();                                   // vdpbf16ps, which some machines with kAvx512 have
const char* Name(Isa isa);                           // "plain", "avx2", "avx512"
std::optional<Isa> ParseIsa(std::string_view text);  // nullopt for any other text

}  // namespace nibble::kernels
