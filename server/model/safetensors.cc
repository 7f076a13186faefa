#include "server/model/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::model {
namespace {

using base::StrCat;
using kernels::DType;

struct DTypeRow {
  const char* name;
  std::uint64_t bits;
  std::optional<DType> dtype;
};

// Every `Dtype` of version 0.8.0 of the crate: a file is valid even if Nibble does not compute with its types.
constexpr std::array<DTypeRow, 22> kDTypes = {{
    {"BOOL", 8, std::nullopt},
    {"F4", 4, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt},
    {"U8", 8, DType::kU8},
    {"I8", 8, DType::kI8},
    {"F8_E5M2", 8, std::nullopt},
    {"F8_E4M3", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt},
    {"F8_E4M3FNUZ", 8, std::nullopt},
    {"F8_E5M2FNUZ", 8, std::nullopt},
    {"I16", 16, std::nullopt},
    {"U16", 16, std::nullopt},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"I32", 32, DType::kI32},
    {"U32", 32, std::nullopt},
    {"F32", 32, DType::kF32},
    {"C64", 64, std::nullopt},
    {"F64", 64, std::nullopt},
    {"I64", 64, DType::kI64},
    {"U64", 64, std::nullopt},
}};

const DTypeRow* FindDType(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

struct Entry {
  std::string name;
  const DTypeRow* dtype = nullptr;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> offsets;
  bool has_shape = false;
  bool has_offsets = false;
};

// Reads the header without building a JSON tree, so that a header of many small values costs no more than its entries.
class HeaderReader : public nlohmann::json_sax<base::Json> {
 public:
  std::map<std::string, std::string> metadata;
  std::vector<Entry> entries;
  std::string error;
  bool over_cap = false;

  bool null() override { return (state_ == State::kTop && is_metadata_) || Scalar("null"); }
  bool boolean(bool) override { return Scalar("a boolean"); }
  bool number_integer(number_integer_t v) override {
    return (state_ == State::kShape || state_ == State::kOffsets) ? Fail(StrCat("negative number ", v))
                                                                  : Scalar("a number");
  }
  bool number_unsigned(number_unsigned_t v) override {
    if (state_ == State::kShape) {
      if (entries.back().shape.size() == kMaxTensorRank) return Cap(StrCat("rank above ", kMaxTensorRank));
      entries.back().shape.push_back(v);
      return true;
    }
    if (state_ == State::kOffsets) {
      if (entries.back().offsets.size() == 2) return Fail("more than two data_offsets");
      entries.back().offsets.push_back(v);
      return true;
    }
    return Scalar("a number");
  }
  bool number_float(number_float_t, const string_t& text) override {
    return Scalar(StrCat("the number ", text.substr(0, 32)));
  }
  bool string(string_t& v) override {
    if (state_ == State::kMetadata) {
      metadata.emplace(key_, std::move(v));
      return true;
    }
    if (state_ == State::kTensor && key_ == "dtype") {
      entries.back().dtype = FindDType(v);
      return entries.back().dtype != nullptr || Fail(StrCat("unknown dtype \"", v.substr(0, 32), "\""));
    }
    return Scalar("a string");
  }
  bool binary(binary_t&) override { return Fail("binary"); }
  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart: state_ = State::kTop; return true;
      case State::kTop:
        if (is_metadata_) {
          state_ = State::kMetadata;
          return true;
        }
        if (entries.size() == kMaxTensors) return Cap(StrCat("more than ", kMaxTensors, " tensors"));
        entries.push_back({});
        entries.back().name = key_;
        fields_.clear();
        state_ = State::kTensor;
        return true;
      default: return Nested();
    }
  }
  bool start_array(std::size_t) override {
    if (state_ == State::kTensor && key_ == "shape") {
      entries.back().has_shape = true;
      state_ = State::kShape;
      return true;
    }
    if (state_ == State::kTensor && key_ == "data_offsets") {
      entries.back().has_offsets = true;
      state_ = State::kOffsets;
      return true;
    }
    return Nested();
  }
  bool end_object() override {
    if (skipping_ > 0) {
      --skipping_;
      return true;
    }
    if (state_ == State::kTensor && !Complete()) return false;
    state_ = state_ == State::kTop ? State::kDone : State::kTop;
    return true;
  }
  bool end_array() override {
    if (skipping_ > 0) {
      --skipping_;
      return true;
    }
    state_ = State::kTensor;
    return true;
  }
  bool key(string_t& k) override {
    if (skipping_ > 0) return true;
    if (k.size() > kMaxTensorName && state_ != State::kMetadata)
      return Cap(StrCat("a name longer than ", kMaxTensorName, " bytes"));
    key_ = std::move(k);
    switch (state_) {
      case State::kTop:
        is_metadata_ = key_ == "__metadata__";
        top_keys_.push_back(key_);
        return true;
      case State::kTensor:
        if (std::find(fields_.begin(), fields_.end(), key_) != fields_.end()) {
          return Fail(StrCat("duplicate key \"", key_, "\" of tensor \"", entries.back().name, "\""));
        }
        if (fields_.size() == kMaxFields) return Cap(StrCat("a tensor with more than ", kMaxFields, " fields"));
        fields_.push_back(key_);
        return true;
      default: return !metadata.contains(key_) || Fail(StrCat("duplicate key \"", key_, "\" of __metadata__"));
    }
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return Fail(StrCat("malformed JSON at byte ", position));
  }
  // Compares names once, at the end: a set of names, filled while reading, would double the cost.
  bool HasDuplicateName() {
    std::sort(top_keys_.begin(), top_keys_.end());
    const auto twice = std::adjacent_find(top_keys_.begin(), top_keys_.end());
    if (twice == top_keys_.end()) return false;
    error = StrCat("duplicate name \"", *twice, "\"");
    return true;
  }

 private:
  static constexpr std::size_t kMaxFields = 64;
  enum class State { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kDone };

  bool Fail(std::string what) {
    error = std::move(what);
    return false;
  }
  bool Cap(std::string what) {
    over_cap = true;
    return Fail(std::move(what));
  }
  // For a scalar where the format expects none: skips it in an unknown field of a tensor, as serde does, else fails.
  bool Scalar(std::string_view what) {
    if (skipping_ > 0) return true;
    if (state_ == State::kTensor && key_ != "dtype" && key_ != "shape" && key_ != "data_offsets") return true;
    return Fail(StrCat(what, " at \"", key_, "\""));
  }
  bool Nested() {
    const bool unknown = state_ == State::kTensor && key_ != "dtype" && key_ != "shape" && key_ != "data_offsets";
    if (skipping_ == 0 && !unknown) return Fail(StrCat("an object or array at \"", key_, "\""));
    if (++skipping_ > base::kMaxJsonDepth) return Cap(StrCat("nested deeper than ", base::kMaxJsonDepth));
    return true;
  }
  bool Complete() {
    const Entry& entry = entries.back();
    const char* missing = entry.dtype == nullptr      ? "dtype"
                          : !entry.has_shape          ? "shape"
                          : entry.offsets.size() != 2 ? "data_offsets"
                                                      : nullptr;
    return missing == nullptr || Fail(StrCat("tensor \"", entry.name, "\" has no complete \"", missing, "\""));
  }

  State state_ = State::kStart;
  int skipping_ = 0;  // open containers of an unknown field
  bool is_metadata_ = false;
  std::string key_;
  std::vector<std::string> top_keys_;
  std::vector<std::string> fields_;  // of the tensor being read
};

absl::Status Corrupt(std::string_view where, std::string_view what) {
  return base::WithReason(absl::DataLossError(StrCat(where, ": ", what)), "MALFORMED_FILE");
}

// Size of a tensor by its shape and type; false on overflow or if it is not a whole number of bytes.
bool SizeInBytes(const Entry& entry, std::uint64_t& bytes) {
  std::uint64_t elements = 1;
  for (const std::uint64_t dim : entry.shape) {
    if (__builtin_mul_overflow(elements, dim, &elements)) return false;
  }
  std::uint64_t bits = 0;
  if (__builtin_mul_overflow(elements, entry.dtype->bits, &bits) || bits % 8 != 0) return false;
  bytes = bits / 8;
  return true;
}

// `start` is where the tensor must begin; on success it becomes the end of the tensor.
absl::StatusOr<SafetensorsTensor> Check(Entry& entry, std::uint64_t& start, std::span<const std::byte> data,
                                        std::string_view where) {
  const std::string who = StrCat("tensor \"", entry.name, "\"");
  const std::uint64_t begin = entry.offsets[0];
  const std::uint64_t end = entry.offsets[1];
  if (begin != start || end < begin) {
    return Corrupt(where, StrCat(who, " has data_offsets [", begin, ", ", end, "], wanted to begin at ", start,
                                 " (no hole, no overlap)"));
  }
  std::uint64_t bytes = 0;
  if (!SizeInBytes(entry, bytes)) {
    return Corrupt(where, StrCat(who, ": its size overflows or is not a whole number of bytes"));
  }
  if (bytes != end - begin) {
    return Corrupt(where, StrCat(who, " takes ", end - begin, " bytes, its shape and dtype need ", bytes));
  }
  if (end > data.size()) {
    return Corrupt(where, StrCat(who, " ends at ", end, " of ", data.size(), " bytes of data: the file is truncated"));
  }
  start = end;
  SafetensorsTensor out;
  for (const std::uint64_t dim : entry.shape) {
    if (dim > INT64_MAX) return Corrupt(where, StrCat(who, " has a dimension of ", dim));
    out.shape.push_back(static_cast<std::int64_t>(dim));
  }
  out.name = std::move(entry.name);
  out.dtype_name = entry.dtype->name;
  out.dtype = entry.dtype->dtype;
  out.bytes = data.subspan(begin, bytes);
  return out;
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensors(std::span<const std::byte> file, std::string_view where) {
  if (file.size() < 8)
    return Corrupt(where, StrCat(file.size(), " bytes, wanted at least the 8 bytes of the header length"));
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | std::to_integer<std::uint64_t>(file[static_cast<std::size_t>(i)]);
  if (length > kMaxSafetensorsHeader) {
    return Corrupt(where, StrCat("a header of ", length, " bytes, at most ", kMaxSafetensorsHeader, " are allowed"));
  }
  if (length > file.size() - 8) {
    return Corrupt(where,
                   StrCat("a header of ", length, " bytes in a file of ", file.size(), ": the file is truncated"));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, length);
  // nlohmann treats a NUL as the end of its input and would ignore the rest.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return Corrupt(where, StrCat("header: malformed JSON at byte ", nul));
  }
  // nlohmann skips a byte order mark; the crate refuses it.
  if (text.starts_with("\xef\xbb\xbf")) return Corrupt(where, "header: malformed JSON at byte 0");
  HeaderReader reader;
  if (!base::Json::sax_parse(text.begin(), text.end(), &reader) || reader.HasDuplicateName()) {
    const std::string what = StrCat("header: ", reader.error.empty() ? "malformed" : reader.error);
    return reader.over_cap ? base::WithReason(absl::ResourceExhaustedError(StrCat(where, ": ", what)), "MALFORMED_FILE")
                           : Corrupt(where, what);
  }
  std::sort(reader.entries.begin(), reader.entries.end(),
            [](const Entry& a, const Entry& b) { return a.offsets < b.offsets; });
  const std::span<const std::byte> data = file.subspan(8 + length);
  SafetensorsHeader header;
  header.metadata = std::move(reader.metadata);
  header.tensors.reserve(reader.entries.size());
  std::uint64_t start = 0;
  for (Entry& entry : reader.entries) {
    NIBBLE_ASSIGN_OR_RETURN(SafetensorsTensor tensor, Check(entry, start, data, where));
    header.tensors.push_back(std::move(tensor));
  }
  if (start != data.size()) {
    return Corrupt(where, StrCat(data.size() - start, " bytes after the last tensor"));
  }
  return header;
}

const char* SafetensorsName(DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row.name;
  }
  return "";
}

std::optional<std::int64_t> NumElements(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(elements, dim, &elements)) return std::nullopt;
  }
  return elements;
}

std::string ShapeText(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += StrCat(i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

}  // namespace nibble::model
