// Safetensors files, read by the rules of the `safetensors` crate: 8 bytes of header length, a JSON header, then tensors
// that fill the rest of the file without hole or overlap. Stricter than the crate, beside the caps below, in three things:
// duplicate keys, dimensions above 2^63 - 1 (of empty tensors) and serde's other spellings (an array for a tensor's object, an
// object for its dtype) are refused. tests/e2e/test_safetensors_crate.py holds the two side by side.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "server/base/files.h"

namespace nibble::model {

inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;  // the format's own limit
inline constexpr std::size_t kMaxTensors = 100'000;
inline constexpr std::size_t kMaxTensorRank = 8;
inline constexpr std::size_t kMaxTensorName = 512;

// Bytes lie in the file it was read from, at any alignment.
struct SafetensorsTensor {
  std::string name;
  std::string dtype_name;                 // "BF16"; any that the format knows
  std::optional<kernels::DType> dtype;    // nothing for those that this house does not compute with
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsTensor> tensors;  // in file order
};

// `where` names the file in messages. Every size is checked against the bytes that are there before anything is allocated.
// Errors: DataLoss, saying what contradicts what; ResourceExhausted beyond the caps above.
absl::StatusOr<SafetensorsHeader> ParseSafetensors(std::span<const std::byte> file, std::string_view where);

// One file or the shards of one model, mapped; views live as long as it does.
struct SafetensorsFiles {
  std::vector<std::shared_ptr<const base::MappedFile>> files;
  std::map<std::string, SafetensorsTensor> tensors;
};

absl::StatusOr<SafetensorsFiles> OpenSafetensors(const std::string& path);

// model.safetensors, or the shards that model.safetensors.index.json lists: each named tensor must be in the shard that the
// index gives it, and shards may hold no others. NotFound when the directory has neither.
absl::StatusOr<SafetensorsFiles> OpenSafetensorsModel(base::FileSystem& files, const std::string& directory);

// "F32" for kF32, ...: the format's names.
const char* SafetensorsName(kernels::DType dtype);

// Elements of a shape; nothing when the product exceeds int64.
std::optional<std::int64_t> NumElements(const std::vector<std::int64_t>& shape);
std::string ShapeText(const std::vector<std::int64_t>& shape);  // "[2, 3]"

}  // namespace nibble::model
