#include "server/model/peft_adapter.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "server/base/error.h"
#include "tests/server/model/files.h"
#include "tests/server/model/peft_files.h"

namespace nibble::model {
namespace {

using kernels::DType;
using ::testing::HasSubstr;

class PeftAdapterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    model_.hidden_size = 8;
    model_.num_layers = 2;
    model_.num_heads = model_.num_kv_heads = 2;
    model_.head_dim = 6;
    model_.ffn_size = 10;
    config_.rank = 4;
    config_.alpha = 16;
    config_.targets = {LinearKind::kQ, LinearKind::kDown};
    plan_ = AdapterTensors(model_, config_);
    values_ = AdapterValues(plan_);
  }
  std::string Path(const char* name) const { return base::JoinPath(directory_.Path("peft"), name); }
  void Write() { WritePeftFiles(directory_.Path("peft"), ToPeftConfig(config_), plan_, values_); }
  absl::StatusOr<PeftAdapter> Read() {
    return ReadPeftAdapter(base::RealFileSystem(), directory_.Path("peft"), model_);
  }

  TempDirectory directory_;
  ModelConfig model_;
  AdapterConfig config_;
  std::vector<TensorPlan> plan_;
  std::vector<std::vector<float>> values_;
};

TEST_F(PeftAdapterTest, ReadsTheValuesOfTheFile) {
  config_.rslora = true;
  Write();
  const auto adapter = Read();
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ(adapter->values, values_);
  EXPECT_EQ(adapter->config.On("model.layers.0.self_attn.q_proj")->scaling, 8.0);
  EXPECT_EQ(adapter->config.targets, config_.targets);
}

TEST_F(PeftAdapterTest, WidensBf16ToF32) {
  for (TensorPlan& tensor : plan_) tensor.dtype = DType::kBF16;
  for (auto& value : values_) std::fill(value.begin(), value.end(), 1.5f);
  Write();
  const auto adapter = Read();
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ(adapter->values, values_);
}

// Programs read the tensor's name, its shape and the wanted shape from the error's metadata.
TEST_F(PeftAdapterTest, NamesTensorThatDoesNotFitTheBase) {
  const std::string q_a = LoraAName(0, LinearKind::kQ), down_b = LoraBName(1, LinearKind::kDown);
  const auto refused = [&](const std::string& tensor, const std::string& got, const std::string& wanted) {
    Write();
    const absl::Status status = Read().status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_EQ(base::Reason(status), "ADAPTER_SHAPE");
    EXPECT_EQ(base::ReasonMetadata(status)["tensor"], tensor);
    EXPECT_EQ(base::ReasonMetadata(status)["got"], got);
    EXPECT_EQ(base::ReasonMetadata(status)["wanted"], wanted);
    EXPECT_THAT(std::string(status.message()), HasSubstr(tensor));
    plan_ = AdapterTensors(model_, config_);
    values_ = AdapterValues(plan_);
  };
  plan_[0].shape = {4, 9};
  values_.clear();
  refused(q_a, "[4, 9]", "[4, 8]");
  plan_[0].shape = {8, 4};  // the same number of elements, transposed
  refused(q_a, "[8, 4]", "[4, 8]");
  plan_.pop_back();
  refused(down_b, "missing", "[8, 4]");
  plan_.push_back({"base_model.model.lm_head.weight", DType::kF32, {3, 8}});
  refused("base_model.model.lm_head.weight", "[3, 8]", "no such tensor");
  plan_.push_back({LoraAName(2, LinearKind::kQ), DType::kF32, {4, 8}});  // from a deeper model
  refused(LoraAName(2, LinearKind::kQ), "[4, 8]", "no such tensor");
}

TEST_F(PeftAdapterTest, RejectsAlphaWhoseProductsOverflow) {
  for (const double alpha : {kMaxLoraAlpha, 1e308}) {
    config_.alpha = alpha;
    Write();
    const absl::Status status = Read().status();
    EXPECT_EQ(status.ok(), alpha == kMaxLoraAlpha) << status;
    if (alpha > kMaxLoraAlpha) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("\"lora_alpha\" is"));
    }
  }
}

TEST_F(PeftAdapterTest, RejectsValuesThatAreNotFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    values_[1][3] = bad;
    Write();
    const absl::Status status = Read().status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("element 3"));
  }
}

// docs/faults.md, C5. A file with missing tensors is refused before `admit` is called, and a file with a non-finite
// value afterwards.
TEST_F(PeftAdapterTest, C5RequestsMemoryForItsValuesBeforeItReadsThem) {
  std::int64_t bytes = 0;
  for (const auto& value : values_) bytes += static_cast<std::int64_t>(value.size() * sizeof(float));
  for (TensorPlan& tensor : plan_) tensor.dtype = DType::kBF16;  // half as many bytes in the file
  values_[1][3] = std::numeric_limits<float>::infinity();
  Write();
  std::vector<std::int64_t> asked;
  absl::Status answer = absl::ResourceExhaustedError("no memory");
  const auto read = [&] {
    return ReadPeftAdapter(base::RealFileSystem(), directory_.Path("peft"), model_,
                           [&](const AdapterConfig&, std::int64_t need) {
                             asked.push_back(need);
                             return answer;
                           })
        .status();
  };
  EXPECT_EQ(read(), answer);
  answer = absl::OkStatus();
  EXPECT_TRUE(absl::IsInvalidArgument(read()));
  EXPECT_THAT(asked, ::testing::ElementsAre(bytes, bytes));
  plan_.pop_back();
  Write();
  EXPECT_EQ(base::Reason(read()), "ADAPTER_SHAPE");
  EXPECT_EQ(asked.size(), 2u);
}

TEST_F(PeftAdapterTest, NamesUnsupportedTypeOfATensor) {
  Write();
  std::string bytes = ReadBytes(Path(kAdapterWeightsFile));
  const auto at = bytes.find("F32");
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 3, "I32");
  WriteBytes(Path(kAdapterWeightsFile), bytes);
  const absl::Status status = Read().status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_EQ(base::Reason(status), "UNSUPPORTED_ADAPTER");
  EXPECT_THAT(std::string(status.message()), HasSubstr("I32"));
}

TEST_F(PeftAdapterTest, DigestOfTheBaseComesFromTheMetadata) {
  const auto write = [&](const std::string& digest) {
    WritePeftFiles(directory_.Path("peft"), ToPeftConfig(config_), plan_, values_,
                   {{"format", "pt"}, {kBaseDigestKey, digest}});
  };
  write(std::string(64, 'a'));
  const auto adapter = Read();
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ(adapter->config.base_digest, std::string(64, 'a'));
  write(std::string(64, 'A'));
  const absl::Status status = Read().status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("adapter_model.safetensors"));
}

TEST_F(PeftAdapterTest, RejectsCorruptOrMissingFiles) {
  EXPECT_TRUE(absl::IsNotFound(Read().status()));
  Write();
  const std::string bytes = ReadBytes(Path(kAdapterWeightsFile));
  WriteBytes(Path(kAdapterWeightsFile), bytes.substr(0, bytes.size() - 1));
  EXPECT_TRUE(absl::IsDataLoss(Read().status())) << Read().status();
  WriteBytes(Path(kAdapterWeightsFile), LittleEndian64(std::uint64_t{1} << 40) + bytes.substr(8));
  EXPECT_FALSE(Read().ok());
  std::filesystem::remove(Path(kAdapterWeightsFile));
  EXPECT_TRUE(absl::IsNotFound(Read().status())) << Read().status();
  WriteBytes(Path("adapter_model.bin"), "pickle");
  EXPECT_EQ(base::Reason(Read().status()), "UNSUPPORTED_ADAPTER");
  WriteBytes(Path(kAdapterConfigFile), "not JSON");
  EXPECT_TRUE(absl::IsInvalidArgument(Read().status())) << Read().status();
}

}  // namespace
}  // namespace nibble::model
