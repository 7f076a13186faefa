#include "server/model/safetensors.h"

#include <gmock/gmock.h>

#include <random>

#include "server/base/error.h"
#include "server/model/safetensors_writer.h"
#include "tests/server/model/files.h"

namespace nibble::model {
namespace {

using kernels::DType;
using ::testing::HasSubstr;

absl::StatusOr<SafetensorsHeader> Parse(const std::string& bytes) {
  return ParseSafetensors(std::as_bytes(std::span(bytes)), "file");
}

TEST(SafetensorsTest, ReadsFilesWrittenByTransformers) {
  const auto single = OpenSafetensorsModel(base::RealFileSystem(), Golden("hf_tied_bf16"));
  ASSERT_TRUE(single.ok()) << single.status();
  EXPECT_EQ(single->tensors.size(), 1u + 2 * 9 + 1);
  const auto& k_proj = single->tensors.at("model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(k_proj.dtype, DType::kBF16);
  EXPECT_EQ(k_proj.shape, (std::vector<std::int64_t>{16, 32}));
  const auto sharded = OpenSafetensorsModel(base::RealFileSystem(), Golden("hf_sharded_f32"));
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  EXPECT_EQ(sharded->files.size(), 4u);
  EXPECT_EQ(sharded->tensors.size(), 1u + 2 * 16 + 2);
}

TEST(SafetensorsTest, AcceptsUnusualValidFiles) {
  const std::pair<const char*, std::size_t> valid[] = {
      {R"({})", 0},
      {R"(  {"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}   )", 3},
      {R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4},     // rank 0: one element
      {R"({"a":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]}})", 0},  // a zero dimension
      {R"({"__metadata__":null,"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1},
      {R"({"b":{"dtype":"F64","shape":[1],"data_offsets":[2,10]},)"
       R"("a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})",
       10},
      {R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2],"other":{"x":[1,{"y":null}]}}})", 2},
      {R"({"__metadata__":{"format":"pt","../x":"y"},)"
       R"("../../etc/passwd":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1},
  };
  for (const auto& [header, bytes] : valid) {
    const auto parsed = Parse(RawSafetensors(header, bytes));
    EXPECT_TRUE(parsed.ok()) << header << ": " << parsed.status();
  }
}

struct Malformed {
  const char* what;  // the case
  std::string bytes;
  const char* message;  // part of the error
};

std::string One(const std::string& fields, std::size_t bytes) {
  return RawSafetensors("{\"a\":{" + fields + "}}", bytes);
}

std::vector<Malformed> MalformedHeaders() {
  const std::string tensor = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  std::string depth_bomb = R"({"a":{"x":)" + std::string(200, '[') + std::string(200, ']') + "}}";
  return {
      {"empty file", "", "0 bytes"},
      {"seven bytes", std::string(7, '\0'), "7 bytes"},
      {"length of zero", LittleEndian64(0), "malformed JSON"},
      {"header longer than the file", LittleEndian64(100) + "{}", "truncated"},
      {"header length of 2^64 - 1", LittleEndian64(UINT64_MAX) + "{}", "at most 100000000"},
      {"header length of 2^64 - 8", LittleEndian64(UINT64_MAX - 7) + "{}", "at most 100000000"},
      {"header of 100,000,001 bytes", LittleEndian64(100'000'001) + std::string(64, ' '), "at most 100000000"},
      {"not JSON", RawSafetensors("hello", 0), "malformed JSON"},
      {"a list", RawSafetensors("[]", 0), "object or array"},
      {"a number", RawSafetensors("7", 0), "number"},
      {"JSON cut short", RawSafetensors(R"({"a":{"dtype":)", 0), "malformed JSON"},
      {"two values", RawSafetensors("{}{}", 0), "malformed JSON"},
      {"not UTF-8", RawSafetensors("{\"\xff\xfe\":1}", 0), "malformed JSON"},
      {"NUL inside", RawSafetensors(std::string("{}\0", 3), 0), "malformed JSON"},
      {"lone surrogate", RawSafetensors(R"({"\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
       "malformed JSON"},
      {"depth bomb", RawSafetensors(depth_bomb, 0), "nested deeper"},
      {"duplicate name", RawSafetensors("{\"a\":{" + tensor + "},\"a\":{" + tensor + "}}", 8), "duplicate name"},
      {"duplicate key in a tensor", One(tensor + R"(,"dtype":"F32")", 8), "duplicate key"},
      {"duplicate metadata", RawSafetensors(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "duplicate key"},
      {"metadata of numbers", RawSafetensors(R"({"__metadata__":{"a":1}})", 0), "number"},
  };
}

std::vector<Malformed> MalformedTensors() {
  const std::string tensor = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  std::string many = "{";
  for (std::size_t i = 0; i <= kMaxTensors; ++i) {
    many += (i == 0 ? "\"" : ",\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  many += "}";
  return {
      {"tensor is a string", RawSafetensors(R"({"a":"b"})", 0), "string"},
      {"tensor is null", RawSafetensors(R"({"a":null})", 0), "null"},
      {"no dtype", One(R"("shape":[2],"data_offsets":[0,8])", 8), "dtype"},
      {"no shape", One(R"("dtype":"F32","data_offsets":[0,8])", 8), "shape"},
      {"no offsets", One(R"("dtype":"F32","shape":[2])", 8), "data_offsets"},
      {"unknown dtype", One(R"("dtype":"Q9","shape":[2],"data_offsets":[0,8])", 8), "unknown dtype"},
      {"dtype in lower case", One(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])", 8), "unknown dtype"},
      {"dtype is a number", One(R"("dtype":4,"shape":[2],"data_offsets":[0,8])", 8), "dtype"},
      {"one offset", One(R"("dtype":"F32","shape":[2],"data_offsets":[0])", 8), "data_offsets"},
      {"three offsets", One(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])", 8), "data_offsets"},
      {"negative offset", One(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])", 8), "negative"},
      {"float offsets", One(R"("dtype":"F32","shape":[2],"data_offsets":[0,1e30])", 8), "1e30"},
      {"float shape", One(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])", 8), "2.0"},
      {"negative shape", One(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])", 8), "negative"},
      {"minus zero", One(R"("dtype":"F32","shape":[-0],"data_offsets":[0,0])", 0), "negative"},
      {"offset of 2^64", One(R"("dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551616])", 8),
       "18446744073709551616"},
      {"offset wraps at 2^64 - 8", One(R"("dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,0])", 8),
       "data_offsets"},
      {"end before begin", One(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])", 8), "data_offsets"},
      {"shape product wraps", One(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])", 8),
       "overflow"},
      {"bits of the shape wrap", One(R"("dtype":"F32","shape":[1152921504606846976],"data_offsets":[0,8])", 8),
       "overflow"},
      {"half a byte", One(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])", 1), "overflow"},
      {"size against shape", One(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])", 8), "need 12"},
      {"zero dim with bytes", One(R"("dtype":"F32","shape":[0],"data_offsets":[0,8])", 8), "need 0"},
      {"rank 9", One(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])", 1), "rank"},
      {"hole at the start", One(R"("dtype":"F32","shape":[2],"data_offsets":[4,12])", 12), "hole"},
      {"hole between",
       RawSafetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                      R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                      3),
       "hole"},
      {"overlap",
       RawSafetensors(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                      R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                      3),
       "overlap"},
      {"two tensors on one place",
       RawSafetensors(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                      R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                      2),
       "overlap"},
      {"data cut short", One(tensor, 7), "truncated"},
      {"trailing bytes", One(tensor, 9), "after the last tensor"},
      {"a long name",
       RawSafetensors("{\"" + std::string(513, 'n') + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
       "name longer"},
      {"100,001 tensors", RawSafetensors(many, 0), "more than 100000"},
  };
}

std::vector<Malformed> MalformedFiles() {
  std::vector<Malformed> files = MalformedHeaders();
  for (Malformed& file : MalformedTensors()) files.push_back(std::move(file));
  return files;
}

TEST(SafetensorsTest, RejectsMalformedFilesWithReason) {
  for (const Malformed& item : MalformedFiles()) {
    const auto parsed = Parse(item.bytes);
    EXPECT_TRUE(absl::IsDataLoss(parsed.status()) || absl::IsResourceExhausted(parsed.status()))
        << item.what << ": " << parsed.status();
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(item.message)) << item.what;
  }
}

TEST(SafetensorsTest, RejectsTruncationAnywhereInFirst4KiB) {
  const std::string whole = ReadBytes(Golden("hf_tied_bf16/model.safetensors"));
  ASSERT_GT(whole.size(), 4096u);
  for (std::size_t size = 0; size < 4096; ++size) {
    EXPECT_TRUE(absl::IsDataLoss(Parse(whole.substr(0, size)).status())) << size;
  }
  EXPECT_TRUE(absl::IsDataLoss(Parse(whole.substr(0, whole.size() - 1)).status()));
  EXPECT_TRUE(Parse(whole).ok());
}

TEST(SafetensorsTest, FlippedBytesNeverReachOutsideTheFile) {
  const std::string whole = ReadBytes(Golden("hf_tied_bf16/model.safetensors"));
  std::mt19937 random(5);
  constexpr std::size_t kFlipped = 2400;  // the header, which has 2040 bytes, and some data
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = whole;
    for (int flips = 0; flips <= i % 3; ++flips) bytes[random() % kFlipped] = static_cast<char>(random());
    const auto parsed = Parse(bytes);
    if (!parsed.ok()) continue;
    for (const auto& tensor : parsed->tensors) {
      EXPECT_GE(reinterpret_cast<const char*>(tensor.bytes.data()), bytes.data());
      EXPECT_LE(reinterpret_cast<const char*>(tensor.bytes.data() + tensor.bytes.size()), bytes.data() + bytes.size());
    }
  }
}

class IndexTest : public ::testing::Test {
 protected:
  absl::Status Open(const std::string& index) {
    WriteBytes(directory_.Path("model.safetensors.index.json"), index);
    WriteBytes(directory_.Path("s.safetensors"),
               RawSafetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1));
    return OpenSafetensorsModel(base::RealFileSystem(), directory_.path()).status();
  }
  TempDirectory directory_;
};

TEST_F(IndexTest, IndexMustMatchTheTensorsOfTheShards) {
  EXPECT_TRUE(Open(R"({"metadata":{},"weight_map":{"a":"s.safetensors"}})").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Open("{")));
  EXPECT_TRUE(absl::IsInvalidArgument(Open("[]")));
  EXPECT_TRUE(absl::IsInvalidArgument(Open(R"({"weight_map":{"a":7}})")));
  EXPECT_TRUE(absl::IsInvalidArgument(Open(R"({"weight_map":{"a":"../s.safetensors"}})")));
  EXPECT_TRUE(absl::IsInvalidArgument(Open(R"({"weight_map":{"a":"/etc/passwd"}})")));
  EXPECT_TRUE(absl::IsNotFound(Open(R"({"weight_map":{"a":"t.safetensors"}})")));
  EXPECT_TRUE(absl::IsDataLoss(Open(R"({"weight_map":{"b":"s.safetensors"}})")));
  EXPECT_TRUE(absl::IsDataLoss(Open(R"({"weight_map":{"a":"s.safetensors","b":"s.safetensors"}})")));
}

TEST(SafetensorsWriterTest, RoundTripsDeterministicallyAndAligned) {
  TempDirectory directory;
  const std::vector<TensorPlan> plan = {{"norm", DType::kF32, {3}},
                                        {"codes", DType::kI8, {5, 3}},
                                        {"half", DType::kBF16, {1}},
                                        {"empty", DType::kF32, {0, 4}},
                                        {"more", DType::kU8, {2}}};
  const std::string norm(12, 'n'), codes(15, 'c'), half(2, 'h'), more(2, 'm');
  std::string first_bytes, first_digest;
  for (int run = 0; run < 2; ++run) {
    const std::string path = directory.Path(std::to_string(run));
    auto writer = SafetensorsWriter::Create(base::RealFileSystem(), path, plan, {{"format", "pt"}});
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_EQ((*writer)->order()[0].name, "codes");
    // The order of Put calls does not affect the file.
    const std::vector<std::pair<std::string, std::string>> arrivals =
        run == 0 ? std::vector<std::pair<std::string, std::string>>{{"norm", norm},
                                                                    {"codes", codes},
                                                                    {"half", half},
                                                                    {"empty", ""},
                                                                    {"more", more}}
                 : std::vector<std::pair<std::string, std::string>>{
                       {"codes", codes}, {"more", more}, {"half", half}, {"norm", norm}, {"empty", ""}};
    for (const auto& [name, bytes] : arrivals) ASSERT_TRUE((*writer)->Put(name, bytes).ok());
    ASSERT_TRUE((*writer)->Finish().ok());
    const std::string bytes = ReadBytes(path);
    const std::string digest = WeightsDigest((*writer)->digests());
    if (run == 0) {
      first_bytes = bytes;
      first_digest = digest;
    }
    EXPECT_EQ(bytes, first_bytes);
    EXPECT_EQ(digest, first_digest);
    const auto read = OpenSafetensors(path);
    ASSERT_TRUE(read.ok()) << read.status();
    for (const auto& [name, tensor] : read->tensors) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) %
                    static_cast<std::uintptr_t>(kernels::SizeOf(*tensor.dtype)),
                0u)
          << name;
    }
    ASSERT_EQ(read->tensors.size(), plan.size());
    for (const auto& [name, dtype, shape] : plan) {
      EXPECT_EQ(read->tensors.at(name).dtype, dtype) << name;
      EXPECT_EQ(read->tensors.at(name).shape, shape) << name;
    }
    for (const auto& [name, put] : arrivals) {
      const auto got = read->tensors.at(name).bytes;
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(got.data()), got.size()), put) << name;
    }
  }
}

TEST(SafetensorsWriterTest, CallerMistakesAreErrors) {
  TempDirectory directory;
  base::FileSystem& files = base::RealFileSystem();
  EXPECT_FALSE(
      SafetensorsWriter::Create(files, directory.Path("x"), {{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}).ok());
  EXPECT_FALSE(SafetensorsWriter::Create(files, directory.Path("x"), {{"a", DType::kF32, {INT64_MAX, 2}}}).ok());
  auto writer =
      *SafetensorsWriter::Create(files, directory.Path("x"), {{"a", DType::kU8, {1}}, {"b", DType::kU8, {1}}});
  EXPECT_FALSE(writer->Put("c", "1").ok());
  EXPECT_FALSE(writer->Put("a", "12").ok());
  EXPECT_TRUE(writer->Put("a", "1").ok());
  EXPECT_FALSE(writer->Put("a", "1").ok());
  EXPECT_FALSE(writer->Finish().ok());
}

}  // namespace
}  // namespace nibble::model
