#include "server/model/gguf.h"

#include <gmock/gmock.h>

#include <cstring>
#include <functional>
#include <random>

#include "server/base/json.h"
#include "server/base/sha256.h"
#include "server/model/float_convert.h"
#include "tests/server/model/files.h"

namespace nibble::model {
namespace {

using ::testing::HasSubstr;

std::string FromHex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i < hex.size(); i += 2) out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

absl::StatusOr<std::unique_ptr<GgufFile>> Parse(const std::string& bytes) {
  return GgufFile::Parse(std::as_bytes(std::span(bytes)), "file");
}

std::string LittleEndian32(std::uint32_t value) { return LittleEndian64(value).substr(0, 4); }
std::string Text(const std::string& text) { return LittleEndian64(text.size()) + text; }

// A valid GGUF file, written by hand; each case changes one part. Types of values: 0 is u8, 1 i8, 4 u32, 6 f32, 7 bool,
// 8 string, 9 array, 10 u64; of tensors: 0 is F32, 8 is Q8_0.
struct Writer {
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::uint64_t num_tensors = 2, num_keys = 2;
  std::string keys = Text("general.architecture") + LittleEndian32(8) + Text("llama") + Text("k") + LittleEndian32(9) +
                     LittleEndian32(4) + LittleEndian64(2) + LittleEndian32(7) + LittleEndian32(8);
  std::string tensors = Info("a", {32}, 0, 0) + Info("b", {32, 2}, 8, 128);
  std::string data = std::string(128, '\1') + std::string(2 * 34, '\2');
  std::size_t alignment = 32;

  static std::string Info(const std::string& name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
                          std::uint64_t offset) {
    std::string out = Text(name) + LittleEndian32(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims) out += LittleEndian64(dim);
    return out + LittleEndian32(type) + LittleEndian64(offset);
  }
  std::string Bytes() const {
    std::string out =
        magic + LittleEndian32(version) + LittleEndian64(num_tensors) + LittleEndian64(num_keys) + keys + tensors;
    out.append((alignment - out.size() % alignment) % alignment, '\0');
    return out + data;
  }
};

std::string Key(const std::string& name, std::uint32_t type, const std::string& value) {
  return Text(name) + LittleEndian32(type) + value;
}

TEST(GgufTest, HandWrittenFileIsValid) {
  const std::string bytes = Writer().Bytes();  // the parsed file borrows them
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 2u);
  EXPECT_EQ((*file)->tensors().find("b")->second.shape, (std::vector<std::int64_t>{2, 32}));
  EXPECT_EQ(*(*file)->String("general.architecture"), "llama");
  EXPECT_EQ(*(*file)->Int("absent"), std::nullopt);
  Writer version2;
  version2.version = 2;
  EXPECT_TRUE(Parse(version2.Bytes()).ok());
  // The last tensor may be padded.
  Writer padded;
  padded.data.append(28, '\0');
  EXPECT_TRUE(Parse(padded.Bytes()).ok());
}

struct Malformed {
  const char* what;
  std::function<void(Writer&)> change;
  const char* message;
};

// The file has only this key.
std::function<void(Writer&)> OneKey(const std::string& key) {
  return [key](Writer& w) {
    w.keys = key;
    w.num_keys = 1;
  };
}

// The file has only this tensor.
std::function<void(Writer&)> OneTensor(const std::string& info) {
  return [info](Writer& w) {
    w.tensors = info;
    w.num_tensors = 1;
  };
}

void ExpectRejected(const std::vector<Malformed>& cases) {
  for (const Malformed& item : cases) {
    Writer writer;
    item.change(writer);
    const auto file = Parse(writer.Bytes());
    EXPECT_TRUE(absl::IsDataLoss(file.status()) || absl::IsUnimplemented(file.status()) ||
                absl::IsResourceExhausted(file.status()))
        << item.what << ": " << file.status();
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(item.message)) << item.what;
  }
}

TEST(GgufTest, RejectsMalformedHeadersWithReason) {
  ExpectRejected({
      {"magic", [](Writer& w) { w.magic = "GGML"; }, "GGUF"},
      {"version 1", [](Writer& w) { w.version = 1; }, "version 1"},
      {"version 4", [](Writer& w) { w.version = 4; }, "version 4"},
      {"big-endian", [](Writer& w) { w.version = 0x03000000; }, "big-endian"},
      {"2^64 - 1 tensors", [](Writer& w) { w.num_tensors = UINT64_MAX; }, "tensors, at most"},
      {"2^64 - 1 keys", [](Writer& w) { w.num_keys = UINT64_MAX; }, "keys, at most"},
      {"more keys than the file has", [](Writer& w) { w.num_keys = 3; }, "rank 0"},
      {"fewer tensors than the file has", [](Writer& w) { w.num_tensors = 1; }, "bytes after the last tensor"},
  });
}

TEST(GgufTest, RejectsMalformedKeysWithReason) {
  ExpectRejected({
      {"a key of 2^60 bytes", [](Writer& w) { w.keys = LittleEndian64(1ull << 60) + w.keys; }, "at most 65535"},
      {"a key longer than the file", [](Writer& w) { w.keys = LittleEndian64(60000) + w.keys; }, "truncated"},
      {"a string of 2^64 - 1 bytes", OneKey(Key("s", 8, LittleEndian64(UINT64_MAX))), "truncated"},
      {"an unknown type", OneKey(Key("s", 13, "")), "unknown type 13"},
      {"an array of unknown type", OneKey(Key("s", 9, LittleEndian32(99) + LittleEndian64(0))), "unknown type 99"},
      {"an array of arrays", OneKey(Key("s", 9, LittleEndian32(9) + LittleEndian64(1))), "array of arrays"},
      {"an array of 2^61 u64", OneKey(Key("s", 9, LittleEndian32(10) + LittleEndian64(1ull << 61))), "elements in"},
      {"an array of 2^61 strings", OneKey(Key("s", 9, LittleEndian32(8) + LittleEndian64(1ull << 61))), "elements in"},
      {"a bool of 2", OneKey(Key("s", 7, "\2")), "bool"},
      {"a key twice", [](Writer& w) { w.keys = Key("s", 0, "\1") + Key("s", 0, "\2"); }, "twice"},
      {"alignment 0", OneKey(Key("general.alignment", 4, LittleEndian32(0))), "general.alignment"},
      {"alignment 24", OneKey(Key("general.alignment", 4, LittleEndian32(24))), "general.alignment"},
      {"alignment 2^31", OneKey(Key("general.alignment", 4, LittleEndian32(1u << 31))), "general.alignment"},
      {"alignment is a string", OneKey(Key("general.alignment", 8, Text("32"))), "general.alignment"},
  });
}

TEST(GgufTest, RejectsMalformedTensorsWithReason) {
  ExpectRejected({
      {"rank 0", OneTensor(Writer::Info("a", {}, 0, 0)), "rank 0"},
      {"rank 5", OneTensor(Writer::Info("a", {1, 1, 1, 1, 1}, 0, 0)), "rank 5"},
      {"rank 2^32 - 1", OneTensor(Text("a") + LittleEndian32(UINT32_MAX)), "rank"},
      {"a zero dimension", OneTensor(Writer::Info("a", {0}, 0, 0)), "dimension"},
      {"a negative dimension", OneTensor(Writer::Info("a", {UINT64_MAX}, 0, 0)), "dimension"},
      {"the product wraps", OneTensor(Writer::Info("a", {1ull << 32, 1ull << 32}, 0, 0)), "overflow"},
      {"the bytes wrap", OneTensor(Writer::Info("a", {1ull << 62}, 0, 0)), "overflow"},
      {"type Q2_K", OneTensor(Writer::Info("a", {256}, 10, 0)), "ggml type 10"},
      {"an unknown tensor type", OneTensor(Writer::Info("a", {256}, 12345, 0)), "ggml type 12345"},
      {"a partial block", OneTensor(Writer::Info("a", {33}, 8, 0)), "multiple of 32"},
      {"an offset that wraps", OneTensor(Writer::Info("a", {32}, 0, UINT64_MAX - 31)), "offset"},
      {"a hole", OneTensor(Writer::Info("a", {32}, 0, 32)), "offset"},
      {"an overlap", [](Writer& w) { w.tensors = Writer::Info("a", {32}, 0, 0) + Writer::Info("b", {32, 2}, 8, 0); },
       "offset"},
      {"unaligned", [](Writer& w) { w.tensors = Writer::Info("a", {32}, 0, 0) + Writer::Info("b", {32, 2}, 8, 132); },
       "offset"},
      {"a tensor twice",
       [](Writer& w) { w.tensors = Writer::Info("a", {32}, 0, 0) + Writer::Info("a", {32, 2}, 8, 128); }, "twice"},
      {"size beyond the file", OneTensor(Writer::Info("a", {1 << 20}, 0, 0)), "truncated"},
      {"data cut short", [](Writer& w) { w.data.pop_back(); }, "truncated"},
      {"no data", [](Writer& w) { w.data.clear(); }, "truncated"},
      {"trailing bytes", [](Writer& w) { w.data.append(29, 'x'); }, "after the last"},
      {"a name of 2^63 bytes", OneTensor(LittleEndian64(1ull << 63)), "at most 512"},
  });
}

TEST(GgufTest, RejectsTruncationAnywhereInFirst4KiB) {
  const std::string whole = ReadBytes(Golden("tiny.gguf"));
  for (std::size_t size = 0; size < 4096; ++size) {
    EXPECT_TRUE(absl::IsDataLoss(Parse(whole.substr(0, size)).status())) << size;
  }
  EXPECT_TRUE(Parse(whole).ok());
}

TEST(GgufTest, FlippedBytesNeverReachOutsideTheFile) {
  const std::string whole = ReadBytes(Golden("tiny.gguf"));
  std::mt19937 random(11);
  constexpr std::size_t kFlipped = 4500;  // the header, which has 3852 bytes, and some data
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = whole;
    for (int flips = 0; flips <= i % 3; ++flips) bytes[random() % kFlipped] = static_cast<char>(random());
    const auto file = Parse(bytes);
    if (!file.ok()) continue;
    for (const auto& [name, tensor] : (*file)->tensors()) {
      EXPECT_LE(reinterpret_cast<const char*>(tensor.bytes.data() + tensor.bytes.size()), bytes.data() + bytes.size());
    }
    (void)(*file)->Strings("tokenizer.ggml.tokens");
    (void)(*file)->Int32s("tokenizer.ggml.token_type");
  }
}

TEST(GgufTest, GettersRejectOtherTypes) {
  Writer writer;
  writer.keys = Key("u8", 0, "\xff") + Key("i8", 1, "\xff") + Key("u64", 10, LittleEndian64(UINT64_MAX)) +
                Key("f32", 6, LittleEndian32(0x3f800000)) + Key("bool", 7, "\1") + Key("str", 8, Text("x")) +
                Key("u8s", 9, LittleEndian32(0) + LittleEndian64(4) + "\1\2\3\4") +
                Key("u32s", 9, LittleEndian32(4) + LittleEndian64(1) + LittleEndian32(UINT32_MAX)) +
                Key("strs", 9, LittleEndian32(8) + LittleEndian64(2) + Text("") + Text("ab"));
  writer.num_keys = 9;
  const std::string bytes = writer.Bytes();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const GgufFile& f = **file;
  EXPECT_EQ(*f.Int("u8"), 255);
  EXPECT_EQ(*f.Int("i8"), -1);
  EXPECT_EQ(*f.Float("f32"), 1.0);
  EXPECT_EQ(*f.Bool("bool"), true);
  EXPECT_EQ(*f.Strings("strs"), (std::vector<std::string>{"", "ab"}));
  for (const char* key : {"u64", "f32", "bool", "str", "u8s"})
    EXPECT_TRUE(absl::IsInvalidArgument(f.Int(key).status())) << key;
  EXPECT_TRUE(absl::IsInvalidArgument(f.Float("u8").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(f.Bool("u8").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(f.String("strs").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(f.Strings("str").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(f.Float32s("u8s").status()));  // llama.cpp has read u8 as f32
  EXPECT_TRUE(absl::IsInvalidArgument(f.Int32s("u32s").status()));
}

TEST(GgufTest, DequantizesAsTheGgufPackage) {
  const auto golden = base::ParseJson(ReadBytes(Golden("dequantize.json")));
  ASSERT_TRUE(golden.ok());
  const std::pair<const char*, GgufType> types[] = {
      {"Q8_0", GgufType::kQ8_0}, {"Q4_0", GgufType::kQ4_0}, {"Q4_1", GgufType::kQ4_1}};
  for (const auto& [name, type] : types) {
    const std::string blocks = FromHex((*golden)[name]["blocks"].get<std::string>());
    const std::string want = FromHex((*golden)[name]["values"].get<std::string>());
    const std::vector<float> got = DequantizeGguf(type, std::as_bytes(std::span(blocks)), 16 * 32);
    ASSERT_EQ(want.size(), got.size() * 4);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size()), 0) << name;
  }
  std::string finite;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    if ((bits & 0x7c00) == 0x7c00) continue;  // infinity or NaN
    const float value = HalfToFloat(static_cast<std::uint16_t>(bits));
    finite.append(reinterpret_cast<const char*>(&value), 4);
  }
  EXPECT_EQ(base::Sha256Hex(finite), (*golden)["F16"]["sha256_of_finite_as_f32"].get<std::string>());
}

}  // namespace
}  // namespace nibble::model
