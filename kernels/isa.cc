#include "kernels/isa.h"

#include <cpuid.h>

namespace nibble::kernels {
namespace {

// Reads leaf 1, ECX bit 29 (Intel SDM vol. 2A, CPUID), because clang 14's __builtin_cpu_supports does not know "f16c".
// The built-in's check of "avx2" already covers whether the operating system saves the registers.
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

Isa DetectIsa() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  return avx512 ? Isa::kAvx512 : avx2 ? Isa::kAvx2 : Isa::kPlain;
}

bool HasBf16Dot() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16");
}

const char* Name(Isa isa) {
  switch (isa) {
    case Isa::kPlain: return "plain";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
  }
  return "unknown";
}

std::optional<Isa> ParseIsa(std::string_view text) {
  for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512}) {
    if (text == Name(isa)) return isa;
  }
  return std::nullopt;
}

}  // namespace nibble::kernels
