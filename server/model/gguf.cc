#include "server/model/gguf.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/safetensors.h"

namespace nibble::model {
namespace {

using base::StrCat;

// llama.cpp's gguf.h, enum gguf_type.
enum ValueType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kFloat64 = 12,
};
constexpr std::uint32_t kNumValueTypes = 13;
// Bytes of a scalar; 0 for strings and arrays.
constexpr std::array<std::uint64_t, kNumValueTypes> kScalarBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr std::array<const char*, kNumValueTypes> kValueNames = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                                 "bool", "string", "array", "u64", "i64", "f64"};

constexpr std::uint64_t kMaxKeys = 65'536;
constexpr std::uint64_t kMaxKeyLength = 65'535;  // the format's own limit
constexpr std::uint64_t kMaxDimensions = 4;      // GGML_MAX_DIMS
constexpr std::uint64_t kMaxAlignment = 1 << 20;
constexpr std::uint64_t kDefaultAlignment = 32;

// Makes a name from the file safe to print in a message.
std::string Shown(std::string_view name) {
  std::string out;
  for (const char c : name.substr(0, 80)) out += c >= 0x20 && c < 0x7f ? c : '?';
  return out;
}

std::optional<GgufType> KnownType(std::uint32_t type) {
  for (const GgufType known :
       {GgufType::kF32, GgufType::kF16, GgufType::kQ4_0, GgufType::kQ4_1, GgufType::kQ8_0, GgufType::kBF16}) {
    if (static_cast<std::uint32_t>(known) == type) return known;
  }
  return std::nullopt;
}

template <typename T>
T Load(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

}  // namespace

// Reads the file once, front to back. Every size is checked against the bytes left before it is used.
class GgufReader {
 public:
  GgufReader(std::span<const std::byte> bytes, GgufFile& out) : bytes_(bytes), out_(out) {}

  absl::Status Read() {
    NIBBLE_ASSIGN_OR_RETURN(const auto magic, Take(4, "magic"));
    if (std::memcmp(magic.data(), "GGUF", 4) != 0) return Corrupt("does not begin with \"GGUF\"");
    NIBBLE_ASSIGN_OR_RETURN(const std::uint32_t version, Number<std::uint32_t>("version"));
    if (version != 2 && version != 3) {
      if (version == 0x03000000u || version == 0x02000000u) return Unsupported("a big-endian file");
      return Unsupported(StrCat("GGUF version ", version, " (supported: 2 and 3)"));
    }
    NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t num_tensors, Number<std::uint64_t>("tensor count"));
    NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t num_keys, Number<std::uint64_t>("key count"));
    if (num_tensors > kMaxTensors) return TooMany(StrCat(num_tensors, " tensors, at most ", kMaxTensors));
    if (num_keys > kMaxKeys) return TooMany(StrCat(num_keys, " keys, at most ", kMaxKeys));
    for (std::uint64_t i = 0; i < num_keys; ++i) NIBBLE_RETURN_IF_ERROR(ReadKey());
    NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t alignment, Alignment());
    struct Info {
      std::string name;
      GgufTensor tensor;
      std::uint64_t offset;
      std::uint64_t size;
    };
    std::vector<Info> infos;
    for (std::uint64_t i = 0; i < num_tensors; ++i) {
      Info info;
      NIBBLE_RETURN_IF_ERROR(ReadTensorInfo(info.name, info.tensor, info.offset, info.size));
      infos.push_back(std::move(info));
    }
    std::uint64_t begin = 0;
    if (__builtin_add_overflow(at_, alignment - 1, &begin)) return Corrupt("its size overflows");
    begin -= begin % alignment;
    if (begin > bytes_.size()) {
      if (num_tensors > 0) return Corrupt("ends before the data of its tensors");
      begin = bytes_.size();
    }
    const std::span<const std::byte> data = bytes_.subspan(begin);
    // As in llama.cpp: tensors are stored in the order of the list, each at the next multiple of the alignment.
    std::uint64_t next = 0;
    std::uint64_t end = 0;
    for (Info& info : infos) {
      if (info.offset != next) {
        return Corrupt(StrCat("tensor \"", Shown(info.name), "\" has offset ", info.offset, ", wanted ", next));
      }
      if (info.offset > data.size() || info.size > data.size() - info.offset) {
        return Corrupt(StrCat("tensor \"", Shown(info.name), "\" needs ", info.size, " bytes at ", info.offset, " of ",
                              data.size(), " bytes of data: the file is truncated"));
      }
      end = info.offset + info.size;
      next = (end + alignment - 1) / alignment * alignment;
      info.tensor.bytes = data.subspan(info.offset, info.size);
      if (!out_.tensors_.emplace(info.name, std::move(info.tensor)).second) {
        return Corrupt(StrCat("tensor \"", Shown(info.name), "\" appears twice"));
      }
    }
    if (data.size() > next) return Corrupt(StrCat(data.size() - next, " bytes after the last tensor"));
    return absl::OkStatus();
  }

 private:
  absl::Status Corrupt(std::string_view what) const {
    return base::WithReason(absl::DataLossError(StrCat(out_.where_, ": ", what)), "MALFORMED_FILE");
  }
  absl::Status Unsupported(std::string_view what) const {
    return base::WithReason(absl::UnimplementedError(StrCat(out_.where_, ": ", what)), "UNSUPPORTED_MODEL");
  }
  absl::Status TooMany(std::string_view what) const {
    return base::WithReason(absl::ResourceExhaustedError(StrCat(out_.where_, ": ", what)), "MALFORMED_FILE");
  }

  absl::StatusOr<std::span<const std::byte>> Take(std::uint64_t size, std::string_view what) {
    if (size > bytes_.size() - at_) {
      return Corrupt(
          StrCat(what, " needs ", size, " bytes at ", at_, " of ", bytes_.size(), ": the file is truncated"));
    }
    const auto out = bytes_.subspan(at_, size);
    at_ += size;
    return out;
  }
  template <typename T>
  absl::StatusOr<T> Number(std::string_view what) {
    NIBBLE_ASSIGN_OR_RETURN(const auto bytes, Take(sizeof(T), what));
    return Load<T>(bytes);
  }
  absl::StatusOr<std::span<const std::byte>> Text(std::string_view what, std::uint64_t max = UINT64_MAX) {
    NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t length, Number<std::uint64_t>(what));
    if (length > max) return Corrupt(StrCat(what, " has ", length, " bytes, wanted at most ", max));
    return Take(length, what);
  }
  absl::StatusOr<std::string> Name(std::string_view what, std::uint64_t max) {
    NIBBLE_ASSIGN_OR_RETURN(const auto bytes, Text(what, max));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  absl::Status ReadKey() {
    NIBBLE_ASSIGN_OR_RETURN(std::string key, Name("a key", kMaxKeyLength));
    const std::string who = StrCat("key \"", Shown(key), "\"");
    GgufFile::Value value;
    NIBBLE_ASSIGN_OR_RETURN(value.type, Number<std::uint32_t>(who));
    if (value.type >= kNumValueTypes) return Corrupt(StrCat(who, " has unknown type ", value.type));
    if (value.type == kArray) {
      NIBBLE_RETURN_IF_ERROR(ReadArray(who, value));
    } else if (value.type == kString) {
      NIBBLE_ASSIGN_OR_RETURN(value.bytes, Text(who));
    } else {
      NIBBLE_ASSIGN_OR_RETURN(value.bytes, Take(kScalarBytes[value.type], who));
      if (value.type == kBool && Load<std::uint8_t>(value.bytes) > 1) {
        return Corrupt(StrCat(who, " is a bool other than 0 or 1"));
      }
    }
    if (!out_.values_.emplace(std::move(key), value).second) return Corrupt(StrCat(who, " appears twice"));
    return absl::OkStatus();
  }

  absl::Status ReadArray(const std::string& who, GgufFile::Value& value) {
    NIBBLE_ASSIGN_OR_RETURN(value.element_type, Number<std::uint32_t>(who));
    NIBBLE_ASSIGN_OR_RETURN(value.count, Number<std::uint64_t>(who));
    if (value.element_type >= kNumValueTypes)
      return Corrupt(StrCat(who, " has elements of unknown type ", value.element_type));
    if (value.element_type == kArray) return Unsupported(StrCat(who, " is an array of arrays"));
    // A string takes at least the 8 bytes of its length.
    const std::uint64_t least = value.element_type == kString ? 8 : kScalarBytes[value.element_type];
    if (value.count > (bytes_.size() - at_) / least) {
      return Corrupt(StrCat(who, " has ", value.count, " elements in ", bytes_.size() - at_, " bytes"));
    }
    const std::uint64_t begin = at_;
    if (value.element_type == kString) {
      for (std::uint64_t i = 0; i < value.count; ++i) NIBBLE_RETURN_IF_ERROR(Text(who).status());
    } else {
      at_ += value.count * least;
    }
    value.bytes = bytes_.subspan(begin, at_ - begin);
    return absl::OkStatus();
  }

  absl::StatusOr<std::uint64_t> Alignment() const {
    const auto it = out_.values_.find("general.alignment");
    if (it == out_.values_.end()) return kDefaultAlignment;
    if (it->second.type != kU32) return Corrupt("general.alignment is not a u32");
    const std::uint32_t alignment = Load<std::uint32_t>(it->second.bytes);
    if (!std::has_single_bit(alignment) || alignment > kMaxAlignment) {
      return Corrupt(StrCat("general.alignment is ", alignment, ", wanted a power of two up to ", kMaxAlignment));
    }
    return alignment;
  }

  absl::Status ReadTensorInfo(std::string& name, GgufTensor& tensor, std::uint64_t& offset, std::uint64_t& size) {
    NIBBLE_ASSIGN_OR_RETURN(name, Name("a tensor name", kMaxTensorName));
    const std::string who = StrCat("tensor \"", Shown(name), "\"");
    NIBBLE_ASSIGN_OR_RETURN(const std::uint32_t rank, Number<std::uint32_t>(who));
    if (rank < 1 || rank > kMaxDimensions)
      return Corrupt(StrCat(who, " has rank ", rank, ", wanted 1 to ", kMaxDimensions));
    std::int64_t elements = 1;
    for (std::uint32_t i = 0; i < rank; ++i) {
      NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t dim, Number<std::uint64_t>(who));
      if (dim == 0 || dim > INT64_MAX || __builtin_mul_overflow(elements, static_cast<std::int64_t>(dim), &elements)) {
        return Corrupt(StrCat(who, " has a dimension of ", dim, ": zero, or the size overflows"));
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(dim));
    }
    NIBBLE_ASSIGN_OR_RETURN(const std::uint32_t type, Number<std::uint32_t>(who));
    const auto known = KnownType(type);
    if (!known.has_value()) {
      return Unsupported(StrCat(who, " has ggml type ", type, " (supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1)"));
    }
    tensor.type = *known;
    NIBBLE_ASSIGN_OR_RETURN(offset, Number<std::uint64_t>(who));
    if (tensor.shape.back() % BlockElements(*known) != 0) {
      return Corrupt(
          StrCat(who, " has rows of ", tensor.shape.back(), ", wanted a multiple of ", BlockElements(*known)));
    }
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(elements / BlockElements(*known), BlockBytes(*known), &bytes)) {
      return Corrupt(StrCat(who, ": its size overflows"));
    }
    size = static_cast<std::uint64_t>(bytes);
    return absl::OkStatus();
  }

  const std::span<const std::byte> bytes_;
  GgufFile& out_;
  std::uint64_t at_ = 0;
};

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Parse(std::span<const std::byte> bytes, std::string_view where) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->where_ = std::string(where);
  NIBBLE_RETURN_IF_ERROR(GgufReader(bytes, *file).Read());
  return file;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(auto mapped, base::MappedFile::Open(path));
  NIBBLE_ASSIGN_OR_RETURN(auto file, Parse(mapped->bytes(), path.substr(path.rfind('/') + 1)));
  file->file_ = std::move(mapped);
  return file;
}

absl::Status GgufFile::WrongType(std::string_view key, const Value& value, const char* wanted) const {
  return absl::InvalidArgumentError(StrCat(
      where_, ": ", key, " is ", kValueNames[value.type],
      value.type == kArray ? StrCat(" of ", kValueNames[value.element_type]) : std::string(), ", wanted ", wanted));
}

absl::StatusOr<std::optional<std::int64_t>> GgufFile::Int(std::string_view key) const {
  const auto it = values_.find(key);
  if (it == values_.end()) return std::optional<std::int64_t>();
  const Value& value = it->second;
  switch (value.type) {
    case kU8: return std::optional<std::int64_t>(Load<std::uint8_t>(value.bytes));
    case kI8: return std::optional<std::int64_t>(Load<std::int8_t>(value.bytes));
    case kU16: return std::optional<std::int64_t>(Load<std::uint16_t>(value.bytes));
    case kI16: return std::optional<std::int64_t>(Load<std::int16_t>(value.bytes));
    case kU32: return std::optional<std::int64_t>(Load<std::uint32_t>(value.bytes));
    case kI32: return std::optional<std::int64_t>(Load<std::int32_t>(value.bytes));
    case kI64: return std::optional<std::int64_t>(Load<std::int64_t>(value.bytes));
    case kU64: {
      const std::uint64_t number = Load<std::uint64_t>(value.bytes);
      if (number > INT64_MAX)
        return absl::InvalidArgumentError(StrCat(where_, ": ", key, " is ", number, ", wanted less than 2^63"));
      return std::optional<std::int64_t>(static_cast<std::int64_t>(number));
    }
    default: return WrongType(key, value, "an integer");
  }
}

absl::StatusOr<std::optional<double>> GgufFile::Float(std::string_view key) const {
  const auto it = values_.find(key);
  if (it == values_.end()) return std::optional<double>();
  const Value& value = it->second;
  if (value.type == kFloat32) return std::optional<double>(static_cast<double>(Load<float>(value.bytes)));
  if (value.type == kFloat64) return std::optional<double>(Load<double>(value.bytes));
  return WrongType(key, value, "f32 or f64");
}

absl::StatusOr<std::optional<bool>> GgufFile::Bool(std::string_view key) const {
  const auto it = values_.find(key);
  if (it == values_.end()) return std::optional<bool>();
  if (it->second.type != kBool) return WrongType(key, it->second, "bool");
  return std::optional<bool>(Load<std::uint8_t>(it->second.bytes) != 0);
}

absl::StatusOr<std::optional<std::string>> GgufFile::String(std::string_view key) const {
  const auto it = values_.find(key);
  if (it == values_.end()) return std::optional<std::string>();
  if (it->second.type != kString) return WrongType(key, it->second, "string");
  const auto bytes = it->second.bytes;
  return std::optional<std::string>(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

absl::StatusOr<const GgufFile::Value*> GgufFile::Array(std::string_view key, std::span<const std::uint32_t> types,
                                                       const char* wanted) const {
  const auto it = values_.find(key);
  if (it == values_.end()) return static_cast<const Value*>(nullptr);
  for (const std::uint32_t type : types) {
    if (it->second.type == kArray && it->second.element_type == type) return &it->second;
  }
  return WrongType(key, it->second, wanted);
}

absl::StatusOr<std::vector<std::string>> GgufFile::Strings(std::string_view key) const {
  constexpr std::uint32_t kTypes[] = {kString};
  NIBBLE_ASSIGN_OR_RETURN(const Value* value, Array(key, kTypes, "array of string"));
  std::vector<std::string> out;
  if (value == nullptr) return out;
  std::span<const std::byte> rest = value->bytes;  // lengths were checked when the file was read
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const std::uint64_t length = Load<std::uint64_t>(rest);
    out.emplace_back(reinterpret_cast<const char*>(rest.data()) + 8, length);
    rest = rest.subspan(8 + length);
  }
  return out;
}

absl::StatusOr<std::vector<std::int32_t>> GgufFile::Int32s(std::string_view key) const {
  constexpr std::uint32_t kTypes[] = {kI32, kU32};
  NIBBLE_ASSIGN_OR_RETURN(const Value* value, Array(key, kTypes, "array of i32"));
  std::vector<std::int32_t> out;
  if (value == nullptr) return out;
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const auto number = Load<std::int32_t>(value->bytes.subspan(4 * i));
    if (value->element_type == kU32 && number < 0)
      return absl::InvalidArgumentError(StrCat(where_, ": ", key, "[", i, "] is ", static_cast<std::uint32_t>(number),
                                               ", wanted at most ", INT32_MAX));
    out.push_back(number);
  }
  return out;
}

absl::StatusOr<std::vector<float>> GgufFile::Float32s(std::string_view key) const {
  constexpr std::uint32_t kTypes[] = {kFloat32};
  NIBBLE_ASSIGN_OR_RETURN(const Value* value, Array(key, kTypes, "array of f32"));
  std::vector<float> out;
  if (value == nullptr) return out;
  for (std::uint64_t i = 0; i < value->count; ++i) out.push_back(Load<float>(value->bytes.subspan(4 * i)));
  return out;
}

}  // namespace nibble::model
