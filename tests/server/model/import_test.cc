#include "server/model/import.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "server/base/error.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/model/artifact_writer.h"
#include "server/model/float_convert.h"
#include "server/model/safetensors.h"
#include "server/model/tensor_table.h"
#include "server/text/tokenizer.h"
#include "tests/server/model/files.h"

namespace nibble::model {
namespace {

using kernels::DType;
using ::testing::HasSubstr;

class ImportTest : public ::testing::Test {
 protected:
  absl::StatusOr<ImportReport> Import(const std::string& source, DType dtype) {
    return ImportModel(base::RealFileSystem(), source, directory_.Path("model"), dtype);
  }
  // Copies a golden directory, so that a test can modify it.
  std::string Copy(const std::string& name) {
    const std::string path = directory_.Path("source");
    std::filesystem::remove_all(path);
    std::filesystem::copy(Golden(name), path, std::filesystem::copy_options::recursive);
    return path;
  }
  void ExpectRefused(const std::string& source, absl::StatusCode code, const std::string& message) {
    const auto report = Import(source, DType::kBF16);
    EXPECT_EQ(report.status().code(), code) << report.status();
    EXPECT_THAT(std::string(report.status().message()), HasSubstr(message));
    EXPECT_FALSE(std::filesystem::exists(directory_.Path("model"))) << "the refused import left a directory";
  }
  TempDirectory directory_;
};

TEST_F(ImportTest, HuggingFaceDirectoryKeepsEveryBit) {
  for (const auto& [name, dtype] :
       {std::pair{"hf_tied_bf16", DType::kBF16}, std::pair{"hf_sharded_f32", DType::kF32}}) {
    std::filesystem::remove_all(directory_.Path("model"));
    const auto report = Import(Golden(name), dtype);
    ASSERT_TRUE(report.ok()) << report.status();
    const auto artifact = Artifact::Open(directory_.Path("model"));
    ASSERT_TRUE(artifact.ok()) << artifact.status();
    EXPECT_TRUE((*artifact)->VerifyBytes().ok());
    EXPECT_EQ((*artifact)->info().weights_digest, report->info.weights_digest);
    EXPECT_EQ((*artifact)->info().kv_dtype, dtype);
    EXPECT_EQ((*artifact)->info().source, "import");
    EXPECT_EQ(ReadBytes(directory_.Path("model/tokenizer.json")),
              ReadBytes(Golden(name) + std::string("/tokenizer.json")));
    EXPECT_EQ(ReadBytes(directory_.Path("model/chat_template.jinja")),
              ReadBytes(Golden(name) + std::string("/chat_template.jinja")));
    const auto source = OpenSafetensorsModel(base::RealFileSystem(), Golden(name));
    for (const auto& [tensor, view] : (*artifact)->tensors()) {
      const auto& want = source->tensors.at(tensor).bytes;
      EXPECT_TRUE(std::equal(view.bytes.begin(), view.bytes.end(), want.begin(), want.end())) << tensor;
    }
  }
}

TEST_F(ImportTest, ValuesAreRoundedOnceAndDigestsRepeat) {
  const auto first = Import(Golden("hf_sharded_f32"), DType::kBF16);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto narrow = Artifact::Open(directory_.Path("model"));
  const auto source = OpenSafetensorsModel(base::RealFileSystem(), Golden("hf_sharded_f32"));
  const auto& want = source->tensors.at("model.layers.1.mlp.up_proj.weight");
  const auto floats = *ToFloats(want.bytes, DType::kF32, 64 * 32);
  const auto got = *(*narrow)->FloatTensor("model.layers.1.mlp.up_proj.weight");
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], kernels::ToFloat(kernels::ToBF16(floats[i])));
  // Embedding and head, last norm; in each of two layers: two norms, q, k and v, o, gate and up, down.
  EXPECT_EQ(first->num_parameters,
            112 * 32 * 2 + 32 +
                2 * (2 * 32 + 32 * 48 + 48 + 2 * (32 * 24 + 24) + 48 * 32 + 32 + 2 * (64 * 32 + 64) + 64 * 32 + 32));
  std::filesystem::remove_all(directory_.Path("model"));
  const auto second = Import(Golden("hf_sharded_f32"), DType::kBF16);
  EXPECT_EQ(first->info.weights_digest, second->info.weights_digest);
  std::filesystem::remove_all(directory_.Path("model"));
  EXPECT_NE(Import(Golden("hf_sharded_f32"), DType::kF32)->info.weights_digest, first->info.weights_digest);
}

TEST_F(ImportTest, DigestCoversOnlyTheWeights) {
  const auto first = Import(Golden("hf_tied_bf16"), DType::kBF16);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string source = Copy("hf_tied_bf16");
  WriteBytes(source + "/generation_config.json", R"({"eos_token_id": [1, 70]})");
  WriteBytes(source + "/chat_template.jinja", "{{ messages[0]['content'] }}");
  std::filesystem::remove_all(directory_.Path("model"));
  const auto second = Import(source, DType::kBF16);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->config.eos_token_ids, (std::vector<std::int32_t>{1, 70}));
  EXPECT_EQ(ReadBytes(directory_.Path("model/chat_template.jinja")), "{{ messages[0]['content'] }}");
  EXPECT_NE(second->info.provenance.at("files"), first->info.provenance.at("files"));
  EXPECT_EQ(second->info.weights_digest, first->info.weights_digest);

  std::string weights = ReadBytes(source + "/model.safetensors");
  char& low = weights[weights.size() - 2];  // the low byte of the last bf16 value
  low = static_cast<char>(low ^ 1);
  WriteBytes(source + "/model.safetensors", weights);
  std::filesystem::remove_all(directory_.Path("model"));
  const auto third = Import(source, DType::kBF16);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_NE(third->info.weights_digest, first->info.weights_digest);
}

TEST_F(ImportTest, GgufIsDequantizedIntoHuggingFaceLayout) {
  const auto report = Import(Golden("tiny.gguf"), DType::kF32);
  ASSERT_TRUE(report.ok()) << report.status();
  const auto artifact = Artifact::Open(directory_.Path("model"));
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  const auto golden = base::ParseJson(ReadBytes(Golden("tiny_gguf.json")));
  ASSERT_TRUE(golden.ok());
  EXPECT_EQ((*artifact)->tensors().size(), golden->size());
  for (const auto& [name, want] : golden->items()) {
    const auto tensor = (*artifact)->Tensor(name);
    ASSERT_TRUE(tensor.ok()) << name;
    EXPECT_EQ(tensor->shape, want["shape"].get<std::vector<std::int64_t>>());
    EXPECT_EQ(base::Sha256Hex({reinterpret_cast<const char*>(tensor->bytes.data()), tensor->bytes.size()}),
              want["sha256_of_f32"].get<std::string>())
        << name;
  }
  const ModelConfig& config = (*artifact)->config();
  EXPECT_EQ(config.rope.scaling, RopeConfig::Scaling::kLlama3);
  EXPECT_EQ(config.rope.factor, 8.0);
  EXPECT_EQ(config.rope.theta, 500000.0);
  EXPECT_EQ(config.bos_token_id, 0);
  EXPECT_EQ(config.eos_token_ids, std::vector<std::int32_t>{1});
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_FALSE(config.qkv_bias || config.o_bias);
  const auto tokenizer = text::Tokenizer::FromJson(ReadBytes(directory_.Path("model/tokenizer.json")));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(*(*tokenizer)->Encode("the", false), std::vector<std::int32_t>{*(*tokenizer)->TokenId("the")});
  EXPECT_THAT(ReadBytes(directory_.Path("model/tokenizer_config.json")), HasSubstr("m['role']"));
}

TEST_F(ImportTest, DirectoryWithOneGgufFileImportsThatFile) {
  const std::string source = directory_.Path("source");
  std::filesystem::create_directory(source);
  std::filesystem::copy(Golden("tiny.gguf"), source + "/model.gguf");
  EXPECT_TRUE(Import(source, DType::kBF16).ok());
  std::filesystem::remove_all(directory_.Path("model"));
  std::filesystem::copy(Golden("tiny.gguf"), source + "/other.gguf");
  ExpectRefused(source, absl::StatusCode::kInvalidArgument, "more than one .gguf");
}

// For the tokenizer.json of a directory, and for the one made from a GGUF file's vocabulary.
TEST_F(ImportTest, RejectsTooLargeTokenizerAndLeavesNothing) {
  for (const char* name : {"hf_tied_bf16", "tiny.gguf"}) {
    const auto import = [&](std::uint64_t limit) {
      std::filesystem::remove_all(directory_.Path("model"));
      return ImportModel(base::RealFileSystem(), Golden(name), directory_.Path("model"), DType::kBF16,
                         {.max_tokenizer_bytes = limit})
          .status();
    };
    ASSERT_TRUE(import(kMaxTokenizerBytes).ok()) << name;
    const std::uint64_t size = std::filesystem::file_size(directory_.Path("model/tokenizer.json"));
    EXPECT_TRUE(import(size).ok()) << name;
    const absl::Status refused = import(size - 1);
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
    EXPECT_EQ(base::Reason(refused), "UPLOAD_TOO_LARGE");
    EXPECT_EQ(base::ReasonMetadata(refused)["max_bytes"], std::to_string(size - 1));
    EXPECT_FALSE(std::filesystem::exists(directory_.Path("model"))) << name;
  }
}

// Ids may have gaps, and a post-processor may name ids that are not in the vocabulary.
TEST_F(ImportTest, RejectsTokenizerWithIdsBeyondTheVocabulary) {
  const std::string source = Copy("hf_tied_bf16");
  const base::Json whole = *base::ParseJson(ReadBytes(source + "/tokenizer.json"));
  const std::int64_t size = 112;
  for (const std::int64_t id : {size, std::int64_t{1} << 31, (std::int64_t{1} << 32) - 1}) {
    base::Json json = whole;
    json["model"]["vocab"]["!"] = id;
    WriteBytes(source + "/tokenizer.json", json.dump());
    ExpectRefused(source, absl::StatusCode::kInvalidArgument, "tokenizer.json: the largest token id is");
    json = whole;
    json["post_processor"]["single"].insert(json["post_processor"]["single"].begin(),
                                            base::Json{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}});
    json["post_processor"]["special_tokens"] = {{"<s>", {{"id", "<s>"}, {"ids", {id}}, {"tokens", {"<s>"}}}}};
    WriteBytes(source + "/tokenizer.json", json.dump());
    ExpectRefused(source, absl::StatusCode::kInvalidArgument, std::to_string(id));
    json["post_processor"]["special_tokens"]["<s>"]["ids"] = {0};
    WriteBytes(source + "/tokenizer.json", json.dump());
    EXPECT_TRUE(Import(source, DType::kBF16).ok());
    std::filesystem::remove_all(directory_.Path("model"));
  }
}

TEST_F(ImportTest, RejectsBadDirectoriesAndLeavesNothing) {
  using absl::StatusCode;
  ExpectRefused(directory_.Path("nowhere"), StatusCode::kNotFound, "nowhere");
  std::string source = Copy("hf_tied_bf16");
  std::filesystem::remove(source + "/tokenizer.json");
  ExpectRefused(source, StatusCode::kNotFound, "tokenizer.json");
  WriteBytes(source + "/tokenizer.json", "{}");
  ExpectRefused(source, StatusCode::kInvalidArgument, "tokenizer.json");
  source = Copy("hf_tied_bf16");
  std::filesystem::remove(source + "/config.json");
  ExpectRefused(source, StatusCode::kNotFound, "config.json");
  source = Copy("hf_tied_bf16");
  std::filesystem::remove(source + "/model.safetensors");
  ExpectRefused(source, StatusCode::kNotFound, "model.safetensors");
  WriteBytes(source + "/pytorch_model.bin", "PK");
  ExpectRefused(source, StatusCode::kUnimplemented, "pickled");

  source = Copy("hf_tied_bf16");
  const std::string whole = ReadBytes(source + "/model.safetensors");
  WriteBytes(source + "/model.safetensors", whole.substr(0, whole.size() / 2));
  ExpectRefused(source, StatusCode::kDataLoss, "truncated");
  std::string lying = whole;
  lying.replace(lying.find("[112,32]"), 8, "[112,33]");
  WriteBytes(source + "/model.safetensors", lying);
  ExpectRefused(source, StatusCode::kDataLoss, "embed_tokens");
  std::string infinite = whole;
  infinite.replace(infinite.size() - 2, 2, std::string("\x80\x7f", 2));
  WriteBytes(source + "/model.safetensors", infinite);
  ExpectRefused(source, StatusCode::kInvalidArgument, "not finite");
  std::string renamed = whole;
  renamed.replace(renamed.find("model.norm.weight"), 17, "model.norm.weighs");
  WriteBytes(source + "/model.safetensors", renamed);
  ExpectRefused(source, StatusCode::kInvalidArgument, "model.norm.weight");

  source = Copy("hf_tied_bf16");
  std::string config = ReadBytes(source + "/config.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = config;
    text.replace(text.find(from), from.size(), to);
    WriteBytes(source + "/config.json", text);
  };
  with("\"intermediate_size\": 64", "\"intermediate_size\": 65");
  ExpectRefused(source, StatusCode::kInvalidArgument, "gate_proj");
  with("LlamaForCausalLM", "GemmaForCausalLM");
  ExpectRefused(source, StatusCode::kUnimplemented, "GemmaForCausalLM");
  with("\"vocab_size\": 112", "\"vocab_size\": 64");
  ExpectRefused(source, StatusCode::kInvalidArgument, "needs [64, 32]");
  with("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
  ExpectRefused(source, StatusCode::kUnimplemented, "model.layers.1");
  with("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
  ExpectRefused(source, StatusCode::kInvalidArgument, "lm_head");
  with("{", "{\"hidden_size\": 4,");
  ExpectRefused(source, StatusCode::kInvalidArgument, "duplicate key");
}

TEST_F(ImportTest, RejectsTruncatedOrUnsupportedGgufAndLeavesNothing) {
  const std::string whole = ReadBytes(Golden("tiny.gguf"));
  const std::string path = directory_.Path("cut.gguf");
  for (const std::size_t size : {std::size_t{0}, std::size_t{10}, whole.size() / 3, whole.size() - 100}) {
    WriteBytes(path, whole.substr(0, size));
    ExpectRefused(path, absl::StatusCode::kDataLoss, "cut.gguf");
  }
  std::string renamed = whole;
  renamed.replace(renamed.find("blk.1.ffn_up"), 12, "blk.7.ffn_up");
  WriteBytes(path, renamed);
  ExpectRefused(path, absl::StatusCode::kInvalidArgument, "blk.1.ffn_up");
  std::string other = whole;
  other.replace(other.find(LittleEndian64(5) + "llama") + 8, 5, "gemma");
  WriteBytes(path, other);
  ExpectRefused(path, absl::StatusCode::kUnimplemented, "gemma");
}

TEST_F(ImportTest, ExistingTargetIsLeftUnchanged) {
  std::filesystem::create_directory(directory_.Path("model"));
  WriteBytes(directory_.Path("model/mine"), "x");
  EXPECT_TRUE(absl::IsAlreadyExists(Import(Golden("tiny.gguf"), DType::kF32).status()));
  EXPECT_EQ(ReadBytes(directory_.Path("model/mine")), "x");
}

TEST_F(ImportTest, DetectsFlippedByteInAnArtifact) {
  ASSERT_TRUE(Import(Golden("hf_tied_bf16"), DType::kBF16).ok());
  const std::string path = directory_.Path("model");
  for (const char* name : {"model.safetensors", "config.json", "nibble.json", "tokenizer.json", "tokenizer_config.json",
                           "generation_config.json", "chat_template.jinja"}) {
    const std::string whole = ReadBytes(path + "/" + name);
    for (std::size_t i = 0; i < 60; ++i) {
      std::string bytes = whole;
      const std::size_t at = i * 7919 % bytes.size();
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << (i % 8)));
      WriteBytes(path + "/" + name, bytes);
      const auto artifact = Artifact::Open(path);
      const absl::Status status = artifact.ok() ? (*artifact)->VerifyBytes() : artifact.status();
      // The checksum of nibble.json covers its values, but not the whitespace between them.
      const bool whitespace_of_info = std::string(name) == "nibble.json" && status.ok();
      if (whitespace_of_info) {
        EXPECT_THAT(std::string(" \n\t\r"), HasSubstr(std::string(1, bytes[at]))) << at;
      } else {
        EXPECT_FALSE(status.ok()) << name << " byte " << at;
      }
    }
    WriteBytes(path + "/" + name, whole);
  }
  EXPECT_TRUE((*Artifact::Open(path))->VerifyBytes().ok());
}

// Creation, write, sync or rename number `fail_at`, counted from 0, fails.
class FailingFiles : public base::FileSystem {
 public:
  explicit FailingFiles(int fail_at) : left_(fail_at) {}
  bool reached() const { return left_ < 0; }
  absl::StatusOr<std::unique_ptr<base::WritableFile>> Create(const std::string& path) override {
    NIBBLE_RETURN_IF_ERROR(Step());
    NIBBLE_ASSIGN_OR_RETURN(auto file, real_.Create(path));
    return std::unique_ptr<base::WritableFile>(std::make_unique<File>(*this, std::move(file)));
  }
  absl::StatusOr<std::unique_ptr<base::WritableFile>> OpenForAppend(const std::string& path) override {
    return real_.OpenForAppend(path);
  }
  absl::StatusOr<std::string> Read(const std::string& path, std::uint64_t max) override {
    return real_.Read(path, max);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    NIBBLE_RETURN_IF_ERROR(Step());
    return real_.Rename(from, to);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    NIBBLE_RETURN_IF_ERROR(Step());
    return real_.SyncDirectory(path);
  }
  absl::Status CreateDirectories(const std::string& path) override { return real_.CreateDirectories(path); }
  absl::Status RemoveAll(const std::string& path) override { return real_.RemoveAll(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override { return real_.List(path); }
  absl::StatusOr<std::uint64_t> Size(const std::string& path) override { return real_.Size(path); }
  bool Exists(const std::string& path) override { return real_.Exists(path); }
  absl::StatusOr<std::uint64_t> FreeBytes(const std::string& path) override { return real_.FreeBytes(path); }

 private:
  class File : public base::WritableFile {
   public:
    File(FailingFiles& owner, std::unique_ptr<base::WritableFile> file) : owner_(owner), file_(std::move(file)) {}
    absl::Status Append(std::string_view bytes) override {
      NIBBLE_RETURN_IF_ERROR(owner_.Step());
      return file_->Append(bytes);
    }
    absl::Status Sync() override {
      NIBBLE_RETURN_IF_ERROR(owner_.Step());
      return file_->Sync();
    }
    absl::Status Close() override { return file_->Close(); }

   private:
    FailingFiles& owner_;
    std::unique_ptr<base::WritableFile> file_;
  };
  absl::Status Step() { return left_-- == 0 ? absl::ResourceExhaustedError("no space left") : absl::OkStatus(); }

  int left_;
  base::FileSystem& real_ = base::RealFileSystem();
};

TEST_F(ImportTest, DiskFailureAtAnyStepLeavesNothing) {
  int fail_at = 0;
  for (;; ++fail_at) {
    FailingFiles files(fail_at);
    const auto report = ImportModel(files, Golden("hf_tied_bf16"), directory_.Path("model"), DType::kBF16);
    if (!files.reached()) {
      ASSERT_TRUE(report.ok()) << report.status();
      break;
    }
    EXPECT_TRUE(absl::IsResourceExhausted(report.status())) << fail_at << ": " << report.status();
    EXPECT_FALSE(std::filesystem::exists(directory_.Path("model"))) << fail_at;
  }
  EXPECT_GT(fail_at, 40);  // 20 tensors, and 6 small files of four steps each
}

// docs/faults.md, C5. The import requests `element_bytes` per element of the largest tensor, and the bytes of its
// companion files.
TEST_F(ImportTest, C5RequestsMemoryBeforeItWritesAnything) {
  const auto check = [&](const std::string& source, DType dtype, std::int64_t element_bytes) {
    SCOPED_TRACE(source + " as " + kernels::Name(dtype));
    std::vector<std::int64_t> asked;
    const auto admit = [&](std::int64_t bytes) {
      asked.push_back(bytes);
      EXPECT_FALSE(std::filesystem::exists(directory_.Path("model")));
      return absl::OkStatus();
    };
    const auto report = ImportModel(base::RealFileSystem(), source, directory_.Path("model"), dtype, {.admit = admit});
    ASSERT_TRUE(report.ok()) << report.status();
    std::int64_t elements = 0, file_bytes = 0;
    for (const TensorSpec& spec : RequiredTensors(report->config))
      elements = std::max(elements, NumElements(spec.shape).value_or(0));
    for (const char* name : kCompanionFiles) {
      const auto size = base::RealFileSystem().Size(directory_.Path(std::string("model/") + name));
      file_bytes += static_cast<std::int64_t>(size.value_or(0));
    }
    EXPECT_THAT(asked, ::testing::ElementsAre(elements * element_bytes + file_bytes));
    std::filesystem::remove_all(directory_.Path("model"));
  };
  check(Golden("hf_tied_bf16"), DType::kBF16, 2);
  check(Golden("hf_tied_bf16"), DType::kF32, 4 + 4);  // floats, and their bytes
  check(Golden("hf_sharded_f32"), DType::kF32, 4);
  check(Golden("hf_sharded_f32"), DType::kBF16, 4 + 2);
  check(Golden("tiny.gguf"), DType::kF32, 4 + 4);
  check(Golden("tiny.gguf"), DType::kBF16, 4 + 2);
}

TEST_F(ImportTest, C5RefusedMemoryLeavesNothing) {
  const auto refuse = [](std::int64_t) { return absl::ResourceExhaustedError("no memory"); };
  const auto report = ImportModel(base::RealFileSystem(), Golden("hf_tied_bf16"), directory_.Path("model"),
                                  DType::kBF16, {.admit = refuse});
  EXPECT_EQ(report.status(), absl::ResourceExhaustedError("no memory"));
  EXPECT_FALSE(std::filesystem::exists(directory_.Path("model")));
}

TEST_F(ImportTest, ImportsTheRealModelFromItsGgufFile) {
  const std::string gguf = NIBBLE_SMOLLM2_GGUF;
  if (gguf.empty() || !std::filesystem::exists(gguf)) GTEST_SKIP() << "no SmolLM2 GGUF file: run deploy/setup.sh";
  const auto report = Import(gguf, DType::kF32);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->num_parameters, 134515008);
  EXPECT_EQ(report->config.num_layers, 30);
  EXPECT_EQ(report->config.rope.theta, 100000.0);
  EXPECT_TRUE(report->config.tied_embeddings);
  EXPECT_EQ(report->config.eos_token_ids, std::vector<std::int32_t>{2});
  const auto artifact = Artifact::Open(directory_.Path("model"));
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  EXPECT_TRUE((*artifact)->VerifyBytes().ok());
  // Every bit is what transformers loads from the same file.
  const auto golden = base::ParseJson(ReadBytes(Golden("smollm2_f32.json")));
  ASSERT_TRUE(golden.ok());
  EXPECT_EQ((*golden)["tensors"], (*artifact)->tensors().size());
  base::Sha256 sha;
  for (const auto& [name, tensor] : (*artifact)->tensors()) sha.Update(tensor.bytes.data(), tensor.bytes.size());
  EXPECT_EQ((*golden)["sha256"], sha.HexDigest());
}

}  // namespace
}  // namespace nibble::model
