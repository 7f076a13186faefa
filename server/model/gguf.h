// GGUF files, versions 2 and 3, little-endian: typed metadata, then tensors at aligned offsets. The file is untrusted:
// every size is checked against the bytes present before it is used.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/files.h"

namespace nibble::model {

// ggml's numbers of the supported element types (ggml.h, enum ggml_type).
// NOLINTNEXTLINE(readability-identifier-naming): as ggml names them
enum class GgufType : std::uint32_t { kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8, kBF16 = 30 };
const char* Name(GgufType type);  // "Q4_1"

struct GgufTensor {
  GgufType type;
  std::vector<std::int64_t> shape;  // row-major as everywhere in Nibble: the file's dimensions reversed
  std::span<const std::byte> bytes;
};

// Thread-compatible; views are valid for the lifetime of the GgufFile.
class GgufFile {
 public:
  // Errors: DataLoss (the file contradicts itself), Unimplemented (version, byte order, element type; named),
  // ResourceExhausted (more tensors or keys than allowed).
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  // Borrows bytes; `where` names the file in messages.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Parse(std::span<const std::byte> bytes, std::string_view where);

  bool Has(std::string_view key) const { return values_.contains(key); }
  // nullopt when the key is absent; InvalidArgument naming the key when its value has another type or is outside int64.
  absl::StatusOr<std::optional<std::int64_t>> Int(std::string_view key) const;
  absl::StatusOr<std::optional<double>> Float(std::string_view key) const;  // f32 or f64
  absl::StatusOr<std::optional<bool>> Bool(std::string_view key) const;
  absl::StatusOr<std::optional<std::string>> String(std::string_view key) const;
  // Empty when the key is absent; InvalidArgument naming the key when the elements have another type.
  absl::StatusOr<std::vector<std::string>> Strings(std::string_view key) const;
  absl::StatusOr<std::vector<std::int32_t>> Int32s(std::string_view key) const;  // i32 or u32 within i32
  absl::StatusOr<std::vector<float>> Float32s(std::string_view key) const;

  const std::map<std::string, GgufTensor, std::less<>>& tensors() const { return tensors_; }
  const std::string& name() const { return where_; }

 private:
  friend class GgufReader;
  struct Value {
    std::uint32_t type = 0;
    std::uint32_t element_type = 0;  // of an array
    std::uint64_t count = 0;         // of an array
    std::span<const std::byte> bytes;
  };
  GgufFile() = default;
  absl::Status WrongType(std::string_view key, const Value& value, const char* wanted) const;
  absl::StatusOr<const Value*> Array(std::string_view key, std::span<const std::uint32_t> types,
                                     const char* wanted) const;

  std::string where_;
  std::shared_ptr<const base::MappedFile> file_;  // null when parsed from borrowed bytes
  std::map<std::string, Value, std::less<>> values_;
  std::map<std::string, GgufTensor, std::less<>> tensors_;
};

// Dequantizes count elements of a tensor's blocks, in f32 arithmetic as the format defines (gguf-py quants.py).
// Requires bytes to hold count elements, and count to be a multiple of the block size.
std::vector<float> DequantizeGguf(GgufType type, std::span<const std::byte> bytes, std::int64_t count);

// Elements and bytes of one block.
std::int64_t BlockElements(GgufType type);
std::int64_t BlockBytes(GgufType type);

}  // namespace nibble::model
