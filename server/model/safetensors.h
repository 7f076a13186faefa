// Reads safetensors files by the rules of the `safetensors` crate: 8 bytes of header length, a JSON header, then
// tensors that fill the rest of the file without hole or overlap. Besides its caps, this reader is stricter than the
// crate in three things: it refuses duplicate keys, dimensions above 2^63 - 1 (of empty tensors) and serde's other
// spellings (an array for a tensor's object, an object for its dtype). tests/e2e/test_safetensors_crate.py compares the
// two.
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

// `bytes` points into the file that was read, at any alignment.
struct SafetensorsTensor {
  std::string name;
  std::string dtype_name;               // "BF16"; any type of the format
  std::optional<kernels::DType> dtype;  // nullopt for types that Nibble does not compute with
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsTensor> tensors;  // in file order
};

// `where` names the file in messages. Every size is checked against the bytes present before anything is allocated.
// Errors: DataLoss, naming the contradiction, also for a header above kMaxSafetensorsHeader; ResourceExhausted beyond
// the other caps above, and for a tensor with more than 64 fields or fields nested deeper than base::kMaxJsonDepth.
absl::StatusOr<SafetensorsHeader> ParseSafetensors(std::span<const std::byte> file, std::string_view where);

// One file or the shards of one model, mapped; views are valid for the lifetime of `files`.
struct SafetensorsFiles {
  std::vector<std::shared_ptr<const base::MappedFile>> files;
  std::map<std::string, SafetensorsTensor> tensors;
  std::map<std::string, std::string> metadata;  // of the last file
};

absl::StatusOr<SafetensorsFiles> OpenSafetensors(const std::string& path);

// Opens model.safetensors, or the shards that model.safetensors.index.json lists. Each listed tensor must be in the
// shard that the index names, and shards may hold no others. NotFound when the directory has neither file, or
// lacks a shard; Unimplemented when it has only pickled weights.
absl::StatusOr<SafetensorsFiles> OpenSafetensorsModel(base::FileSystem& files, const std::string& directory);

// "F32" for kF32, ...: the format's names.
const char* SafetensorsName(kernels::DType dtype);

// Number of elements of a shape; nullopt when the product exceeds int64.
std::optional<std::int64_t> NumElements(const std::vector<std::int64_t>& shape);
std::string ShapeText(const std::vector<std::int64_t>& shape);  // "[2, 3]"

}  // namespace nibble::model
