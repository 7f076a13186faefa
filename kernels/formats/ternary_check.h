// Argument checks of ternary weights, shared by the ops that read them.
#pragma once
#include "kernels/check.h"
#include "kernels/formats/ternary.h"

namespace nibble::kernels {

inline absl::Status CheckTernaryWeight(const char* op, const PackedTernaryWeight& w, std::int64_t max_cols) {
  if (w.rows < 0 || w.cols < 0 || w.cols > max_cols || w.padded_k != TernaryPaddedK(w.cols)) {
    return absl::InvalidArgumentError(absl::StrCat(op, ": w is [", w.rows, ", ", w.cols, "] padded to ", w.padded_k,
                                                   ", wanted rows >= 0 and 0 to ", max_cols,
                                                   " columns, padded to the next multiple of 64"));
  }
  return CheckThat(w.rows == 0 || w.cols == 0 || w.tiles != nullptr, op, "w with tiles");
}

}  // namespace nibble::kernels
