// How an nf4 artifact stores its weights.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/formats/double_quant.h"
#include "kernels/formats/nf4.h"
#include "server/base/json.h"

namespace nibble::model {

struct Nf4Options {
  std::int64_t block = kernels::kNf4Block;                 // weights per scale
  bool double_quant = true;                                // the scales are int8 codes; else they are f32
  std::int64_t scaler_block = kernels::kDoubleQuantBlock;  // with double_quant: scales per factor

  friend bool operator==(const Nf4Options&, const Nf4Options&) = default;
};

// Why the number of elements per block is not allowed, such as "is 48, wanted a power of two from 32 to 4096"; "" if it
// is allowed.
std::string BlockProblem(std::int64_t block);

// The text of error messages: "blocks of 64, scales in int8 in blocks of 256", "blocks of 128, scales in f32".
std::string Describe(const Nf4Options& options);

// The end of a file name: "" for the default, "-b32-s64", "-b128-f32".
std::string KeyOf(const Nf4Options& options);

base::Json ToJson(const Nf4Options& options);
// Errors: InvalidArgument, naming `file` and the field.
absl::StatusOr<Nf4Options> ParseNf4Options(const base::Json& json, const char* file);

}  // namespace nibble::model
