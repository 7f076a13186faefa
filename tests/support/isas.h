// The CPU paths that this machine can run, plain first: tests compare each with plain.
#pragma once
#include <vector>

#include "kernels/isa.h"
#include "kernels/stream.h"

namespace nibble::support {

inline std::vector<kernels::Isa> Isas() {
  std::vector<kernels::Isa> isas = {kernels::Isa::kPlain};
  for (const kernels::Isa isa : {kernels::Isa::kAvx2, kernels::Isa::kAvx512}) {
    if (kernels::DetectIsa() >= isa) isas.push_back(isa);
  }
  return isas;
}

inline kernels::Stream CpuStream(kernels::Isa isa, kernels::ThreadPool* pool = nullptr) {
  kernels::Stream stream;
  stream.isa = isa;
  stream.pool = pool;
  return stream;
}

}  // namespace nibble::support
