#include "server/convert/convert.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "kernels/formats/nf4.h"
#include "server/base/error.h"
#include "server/convert/export.h"
#include "server/model/artifact_writer.h"
#include "server/model/import.h"
#include "server/model/loaded_model.h"
#include "server/model/safetensors.h"
#include "server/model/share_file.h"
#include "server/model/stored_tensors.h"
#include "tests/server/convert/convert_fixture.h"
#include "tests/server/model/files.h"
#include "tests/support/cancel_at.h"
#include "tests/support/isas.h"

namespace nibble::convert {
namespace {

using kernels::DType;
using model::Artifact;
using model::Format;
using ::testing::HasSubstr;

// A linear of a lora model merged onto its dequantized base, in double from the stored parts. K must be even.
std::vector<double> MergedInDouble(const Artifact& lora, const std::string& name) {
  const std::string weight = name + ".weight";
  const auto codes = *lora.Tensor(weight);
  const auto absmax_codes = *lora.Tensor(weight + "_absmax");
  const auto factor = *lora.FloatTensor(weight + "_absmax_factor");
  const float offset = (*lora.FloatTensor(weight + "_absmax_offset"))[0];
  const std::int64_t n = codes.shape[0];
  const std::int64_t k = codes.shape[1] * 2;
  const std::int64_t blocks = absmax_codes.shape[1];
  std::vector<double> merged(static_cast<std::size_t>(n * k));
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t c = 0; c < k; ++c) {
      const auto byte = std::to_integer<unsigned>(codes.bytes[static_cast<std::size_t>(r * k / 2 + c / 2)]);
      const auto code = c % 2 == 0 ? byte >> 4 : byte & 15;
      const std::int64_t block = r * blocks + c / 64;
      const auto absmax_code = std::to_integer<std::int8_t>(absmax_codes.bytes[static_cast<std::size_t>(block)]);
      const float absmax = static_cast<float>(absmax_code) / factor[static_cast<std::size_t>(block / 256)] + offset;
      merged[static_cast<std::size_t>(r * k + c)] = static_cast<double>(kernels::kNf4Book[code] * absmax);
    }
  }
  AddAdapter(lora, name, merged);
  return merged;
}

// Checks the codes and scales of every row against the int8 formula in plain loops.
void ExpectInt8Rows(const std::vector<float>& weight, const Artifact& got, const std::string& name) {
  const auto codes = *got.Tensor(name);
  const auto scales = *got.FloatTensor(name + "_scale");
  ASSERT_EQ(codes.dtype, DType::kI8);
  const std::int64_t cols = codes.shape[1];
  for (std::int64_t r = 0; r < codes.shape[0]; ++r) {
    float absmax = 0;
    for (std::int64_t c = 0; c < cols; ++c)
      absmax = std::max(absmax, std::fabs(weight[static_cast<std::size_t>(r * cols + c)]));
    const float scale = std::max(absmax, 1e-12f) / 127.0f;
    const float inverse = 1.0f / scale;
    ASSERT_EQ(scales[static_cast<std::size_t>(r)], scale) << name << " row " << r;
    for (std::int64_t c = 0; c < cols; ++c) {
      const float want =
          std::clamp(std::nearbyintf(weight[static_cast<std::size_t>(r * cols + c)] * inverse), -127.0f, 127.0f);
      ASSERT_EQ(static_cast<float>(std::to_integer<std::int8_t>(codes.bytes[static_cast<std::size_t>(r * cols + c)])),
                want)
          << name << " " << r << " " << c;
    }
  }
}

TEST_F(ConvertTest, FloatToInt8FollowsTheFormulaAndSharesTheTiedEmbedding) {
  const auto source = Import("hf_tied_bf16", DType::kBF16, "source");
  const auto report = Convert(*source, "int8", {});
  ASSERT_TRUE(report.ok()) << report.status();
  const auto int8 = Open("int8");
  EXPECT_EQ(int8->info().format, Format::kInt8);
  EXPECT_EQ(int8->info().act_outliers, 8);
  EXPECT_TRUE(int8->info().int8_head);
  EXPECT_EQ(int8->info().base_digest, source->info().weights_digest);
  EXPECT_EQ(int8->info().source, "convert");
  EXPECT_EQ(report->layers.size(), 1u + 2 * 7);
  for (const auto& spec : model::RequiredTensors(source->config())) {
    if (spec.shape.size() == 2) {
      ExpectInt8Rows(*source->FloatTensor(spec.name), *int8, spec.name);
    } else {
      EXPECT_EQ(int8->Tensor(spec.name)->dtype, DType::kF32);
      EXPECT_EQ(*int8->FloatTensor(spec.name), *source->FloatTensor(spec.name));
    }
  }
  for (const LayerError& layer : report->layers) {
    EXPECT_GT(layer.relative_error, 0.001) << layer.name;
    // The errors are spread evenly over half a step, and a step is 1/127 of the largest value.
    EXPECT_LT(layer.relative_error, 0.01) << layer.name;
    // relative_error is rms_error divided by the root mean square of the weights.
    double squares = 0;
    const auto weights = *source->FloatTensor(layer.name);
    for (const float w : weights) squares += static_cast<double>(w) * static_cast<double>(w);
    const double rms = std::sqrt(squares / static_cast<double>(weights.size()));
    EXPECT_NEAR(layer.rms_error / rms, layer.relative_error, 1e-9) << layer.name;
  }
  EXPECT_EQ(model::ReadBytes(directory_.Path("int8/tokenizer.json")),
            model::ReadBytes(directory_.Path("source/tokenizer.json")));
  EXPECT_EQ(ToJson(*report)["layers"].size(), report->layers.size());
  EXPECT_EQ(ToJson(*report)["digest"], int8->info().weights_digest);
  EXPECT_EQ(ToJson(*report)["layers"][0]["rms_error"], report->layers[0].rms_error);
}

TEST_F(ConvertTest, HeadIsBf16WithoutInt8Head) {
  const auto source = Import("hf_sharded_f32", DType::kF32, "source");
  ConvertOptions options;
  options.int8_head = false;
  options.act_outliers = 0;
  options.kv_dtype = DType::kF32;
  ASSERT_TRUE(Convert(*source, "int8", options).ok());
  const auto int8 = Open("int8");
  EXPECT_EQ(int8->Tensor(model::kHeadName)->dtype, DType::kBF16);
  EXPECT_EQ(int8->Tensor(model::kEmbeddingName)->dtype, DType::kF32);
  EXPECT_EQ(int8->Tensor("model.layers.0.mlp.up_proj.bias")->dtype, DType::kF32);
  EXPECT_EQ(int8->info().act_outliers, 0);
  EXPECT_EQ(int8->info().kv_dtype, DType::kF32);
  ASSERT_TRUE(Convert(*source, "int8_head", {}).ok());
  EXPECT_EQ(Open("int8_head")->Tensor(model::kHeadName)->dtype, DType::kI8);
  EXPECT_EQ(Open("int8_head")->Tensor(model::kEmbeddingName)->dtype, DType::kF32);
}

TEST_F(ConvertTest, BytesAreTheSameOnEveryPathAndThreadCount) {
  const auto source = Import("hf_sharded_f32", DType::kBF16, "source");
  ConvertOptions to_nf4;
  to_nf4.to = Format::kNf4;
  std::string int8_bytes, nf4_bytes, merged_bytes, bf16_bytes;
  int run = 0;
  for (const kernels::Isa isa : support::Isas()) {
    for (const int threads : {1, 3}) {
      kernels::ThreadPool pool(threads);
      kernels::Stream stream;
      stream.isa = isa;
      stream.pool = &pool;
      const std::string tag = std::to_string(run++);
      ASSERT_TRUE(ConvertModel(files_, *source, directory_.Path("int8" + tag), {}, stream).ok());
      ASSERT_TRUE(ConvertModel(files_, *source, directory_.Path("nf4" + tag), to_nf4, stream).ok());
      const auto lora = Lora(*Open("nf4" + tag), "lora" + tag);
      ASSERT_TRUE(ConvertModel(files_, *lora, directory_.Path("merged" + tag), {}, stream).ok());
      ASSERT_TRUE(ConvertModel(files_, *lora, directory_.Path("bf16" + tag), {.to = Format::kBF16}, stream).ok());
      const auto bytes = [&](const std::string& name) {
        return model::ReadBytes(directory_.Path(name + tag + "/model.safetensors"));
      };
      if (run == 1) {
        int8_bytes = bytes("int8");
        nf4_bytes = bytes("nf4");
        merged_bytes = bytes("merged");
        bf16_bytes = bytes("bf16");
      }
      EXPECT_EQ(bytes("int8"), int8_bytes);
      EXPECT_EQ(bytes("nf4"), nf4_bytes);
      EXPECT_EQ(bytes("merged"), merged_bytes);
      EXPECT_EQ(bytes("bf16"), bf16_bytes);
    }
  }
}

// The maxima of quantize_int8 ignore a NaN, so the scale would be finite.
TEST_F(ConvertTest, RejectsNonFiniteWeightsForInt8) {
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  const std::uint32_t f32_nan = 0x7fc00000u, f32_infinity = 0xff800000u;
  const std::uint16_t bf16_nan = 0xffc0, bf16_infinity = 0x7f80;
  const auto bits = [](const auto& value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string tag = kernels::Name(dtype);
    auto source = Import("hf_sharded_f32", dtype, tag);
    const model::TensorView view = *source->Tensor(name);
    const std::string tensor(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size());
    const auto cols = static_cast<std::size_t>(view.shape[1]);
    const auto width = static_cast<std::size_t>(kernels::SizeOf(dtype));
    source.reset();
    const std::string file = directory_.Path(tag + "/model.safetensors");
    const std::string whole = model::ReadBytes(file);
    const std::size_t at = whole.find(tensor);
    ASSERT_NE(at, std::string::npos);
    for (const std::string& spoilt : dtype == DType::kF32 ? std::vector{bits(f32_nan), bits(f32_infinity)}
                                                          : std::vector{bits(bf16_nan), bits(bf16_infinity)}) {
      for (const std::size_t column : {std::size_t{0}, cols / 2, cols - 1}) {
        std::string other = whole;
        other.replace(at + (2 * cols + column) * width, width, spoilt);
        model::WriteBytes(file, other);
        const auto opened = Artifact::Open(directory_.Path(tag));
        ASSERT_TRUE(opened.ok()) << opened.status();
        for (const kernels::Isa isa : support::Isas()) {
          const auto status =
              ConvertModel(files_, **opened, directory_.Path("int8"), {}, support::CpuStream(isa)).status();
          EXPECT_TRUE(absl::IsInvalidArgument(status))
              << status << " " << tag << " column " << column << " " << kernels::Name(isa);
          EXPECT_THAT(std::string(status.message()), HasSubstr(name + ": row 2 is not finite"));
          std::filesystem::remove_all(directory_.Path("int8"));
        }
      }
    }
  }
}

TEST_F(ConvertTest, Nf4HasTheErrorAndTheSizeOfFourBits) {
  const auto source = Import("hf_tied_bf16", DType::kBF16, "source");
  ConvertOptions options;
  options.to = Format::kNf4;
  const auto report = Convert(*source, "nf4", options);
  ASSERT_TRUE(report.ok()) << report.status();
  const auto nf4 = Open("nf4");
  EXPECT_EQ(nf4->info().format, Format::kNf4);
  EXPECT_EQ(nf4->info().act_outliers, 0);
  EXPECT_EQ(nf4->Tensor(model::kEmbeddingName)->dtype, DType::kBF16);
  EXPECT_EQ(*nf4->FloatTensor(model::kEmbeddingName), *source->FloatTensor(model::kEmbeddingName));
  EXPECT_EQ(report->layers.size(), 2u * 7);
  for (const LayerError& layer : report->layers) {
    EXPECT_GT(layer.relative_error, 0.03) << layer.name;
    EXPECT_LT(layer.relative_error, 0.13) << layer.name;
  }
  // 32 columns with two codes in each byte.
  const auto up = nf4->Tensor("model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(up->shape, (std::vector<std::int64_t>{64, 16}));
}

TEST_F(ConvertTest, LoraModelIsMergedOntoTheDequantizedBase) {
  const auto source = Import("hf_tied_bf16", DType::kBF16, "source");
  ConvertOptions to_nf4;
  to_nf4.to = Format::kNf4;
  ASSERT_TRUE(Convert(*source, "nf4", to_nf4).ok());
  const auto nf4 = Open("nf4");
  const auto lora = Lora(*nf4, "lora");
  EXPECT_EQ(lora->info().format, Format::kLora);
  EXPECT_EQ(lora->info().base_digest, nf4->info().weights_digest);
  EXPECT_NE(lora->info().weights_digest, nf4->info().weights_digest);
  EXPECT_EQ(lora->info().provenance["job_id"], "job-1");
  ASSERT_TRUE(Convert(*lora, "int8", {}).ok());
  const auto int8 = Open("int8");
  EXPECT_EQ(int8->info().provenance["job_id"], "job-1");
  // The head stays as trained unless requested otherwise (docs/numerics.md 11). It is tied here, so the embedding stays
  // too.
  EXPECT_FALSE(int8->info().int8_head);
  EXPECT_EQ(int8->Tensor(model::kEmbeddingName)->dtype, DType::kBF16);
  EXPECT_EQ(*int8->FloatTensor(model::kEmbeddingName), *source->FloatTensor(model::kEmbeddingName));
  ConvertOptions with_int8_head;
  with_int8_head.int8_head = true;
  ASSERT_TRUE(Convert(*lora, "int8_head", with_int8_head).ok());
  EXPECT_EQ(Open("int8_head")->Tensor(model::kEmbeddingName)->dtype, DType::kI8);
  ASSERT_TRUE(Convert(*nf4, "base_int8", {}).ok());
  const auto base_int8 = Open("base_int8");
  // Reference in double from the stored parts.
  for (const auto& [name, trained] : {std::pair{std::string("model.layers.1.mlp.down_proj"), true},
                                      std::pair{std::string("model.layers.1.mlp.up_proj"), false}}) {
    const std::string weight = name + ".weight";
    const std::vector<double> merged = MergedInDouble(*lora, name);
    const std::int64_t n = lora->Tensor(weight)->shape[0];
    const std::int64_t k = static_cast<std::int64_t>(merged.size()) / n;
    const auto got = *int8->Tensor(weight);
    const auto scale = *int8->FloatTensor(weight + "_scale");
    std::int64_t equal = 0;
    for (std::int64_t r = 0; r < n; ++r) {
      for (std::int64_t c = 0; c < k; ++c) {
        const double want =
            merged[static_cast<std::size_t>(r * k + c)] / static_cast<double>(scale[static_cast<std::size_t>(r)]);
        const double code = std::to_integer<std::int8_t>(got.bytes[static_cast<std::size_t>(r * k + c)]);
        ASSERT_LE(std::fabs(code - want), 0.5001) << name << " " << r << " " << c;
        equal += got.bytes[static_cast<std::size_t>(r * k + c)] ==
                 base_int8->Tensor(weight)->bytes[static_cast<std::size_t>(r * k + c)];
      }
    }
    EXPECT_EQ(equal == n * k, !trained) << name;
  }
}

TEST_F(ConvertTest, MergedBf16ModelIsWithinRoundingOfTheMergedWeights) {
  const auto source = Import("hf_sharded_f32", DType::kF32, "source");
  ASSERT_TRUE(Convert(*source, "nf4", {.to = Format::kNf4}).ok());
  const auto lora = Lora(*Open("nf4"), "lora");
  const auto report = Convert(*lora, "merged", {.to = Format::kBF16});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->layers.empty()) << "no weight is quantized";
  const auto merged = Open("merged");
  EXPECT_EQ(merged->info().format, Format::kBF16);
  EXPECT_EQ(merged->info().kv_dtype, DType::kBF16);
  EXPECT_EQ(merged->info().base_digest, lora->info().weights_digest);
  EXPECT_EQ(merged->info().provenance["converted_from"], "lora");
  EXPECT_FALSE(merged->adapter().has_value());
  for (const model::TensorSpec& spec : model::RequiredTensors(source->config())) {
    const std::vector<float> got = *merged->FloatTensor(spec.name);
    if (spec.role != model::TensorRole::kLinear) {
      const std::vector<float> unchanged = *source->FloatTensor(spec.name);
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], kernels::ToFloat(kernels::ToBF16(unchanged[i]))) << spec.name << " " << i;
      }
      continue;
    }
    const std::string name = spec.name.substr(0, spec.name.rfind('.'));
    const std::vector<double> want = MergedInDouble(*lora, name);
    ASSERT_EQ(got.size(), want.size()) << name;
    for (std::size_t i = 0; i < got.size(); ++i) {
      // Half a step of bf16, and the roundings of the f32 sum.
      ASSERT_NEAR(static_cast<double>(got[i]), want[i], std::fabs(want[i]) * 0x1p-8 + 1e-6) << name << " " << i;
    }
  }
  // The result is an ordinary bf16 model: it is served, exported and imported again.
  EXPECT_TRUE(model::LoadedModel::Load(directory_.Path("merged"), {.max_positions = 16}, kernels::Stream()).ok());
  ASSERT_TRUE(ExportHf(files_, *merged, directory_.Path("hf")).ok());
  const auto again = model::ImportModel(files_, directory_.Path("hf"), directory_.Path("again"), DType::kBF16);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->info.weights_digest, merged->info().weights_digest);
}

TEST_F(ConvertTest, FloatAndNf4ModelsBecomeBf16) {
  const auto source = Import("hf_sharded_f32", DType::kF32, "source");
  ASSERT_TRUE(Convert(*source, "bf16", {.to = Format::kBF16}).ok());
  const auto imported = Import("hf_sharded_f32", DType::kBF16, "imported");
  EXPECT_EQ(Open("bf16")->info().weights_digest, imported->info().weights_digest);
  ASSERT_TRUE(Convert(*source, "nf4", {.to = Format::kNf4}).ok());
  ASSERT_TRUE(Convert(*Open("nf4"), "dequantized", {.to = Format::kBF16}).ok());
  EXPECT_NE(Open("dequantized")->info().weights_digest, imported->info().weights_digest);
}

// The products accept a limited number of columns. If conversions and loads did not check this number, the first token
// would fail.
TEST_F(ConvertTest, RejectsMoreInputFeaturesThanAProductAllows) {
  const auto small = Import("hf_tied_bf16", DType::kBF16, "small");
  model::ModelConfig config = small->config();
  config.num_layers = 1;
  const auto zeros = [&](const model::ArtifactInfo& info, const std::string& name) {
    const auto stored = model::StoredTensors(config, info);
    std::vector<model::TensorPlan> plan;
    for (const model::StoredTensor& tensor : *stored) plan.push_back({tensor.name, tensor.dtypes[0], tensor.shape});
    auto writer = *model::ArtifactWriter::Create(files_, directory_.Path(name), plan);
    for (const model::TensorPlan& tensor : writer->tensors().order()) {
      const auto bytes = static_cast<std::size_t>(*model::NumElements(tensor.shape) * kernels::SizeOf(tensor.dtype));
      EXPECT_TRUE(writer->tensors().Put(tensor.name, std::string(bytes, '\0')).ok());
    }
    EXPECT_TRUE(writer->CopyCompanions(small->directory()).ok());
    const auto finished = writer->Finish(config, info);
    EXPECT_TRUE(finished.ok()) << finished.status();
    return Open(name);
  };
  model::ArtifactInfo int8;
  int8.format = Format::kInt8;
  int8.int8_head = true;
  const auto loaded = [&](const std::string& name) {
    return model::LoadedModel::Load(directory_.Path(name), {.max_positions = 16}, kernels::Stream()).status();
  };
  config.ffn_size = kernels::kInt8MaxCols;
  zeros(int8, "largest");
  EXPECT_TRUE(loaded("largest").ok()) << loaded("largest");
  config.ffn_size = kernels::kInt8MaxCols + 1;
  model::ArtifactInfo bf16;
  bf16.format = Format::kBF16;
  const auto source = zeros(bf16, "source");
  const std::string want =
      "model.layers.0.mlp.down_proj.weight has 132105 input features, wanted at most 132104 for int8";
  absl::Status status = Convert(*source, "int8", {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("target: " + want));
  EXPECT_EQ(base::Reason(status), "FIELD_VIOLATION");
  EXPECT_FALSE(files_.Exists(directory_.Path("int8")));
  zeros(int8, "too_large");
  status = loaded("too_large");
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(want));
  model::ArtifactInfo ternary;
  ternary.format = Format::kTernary;
  ternary.bitnet = model::BitNetInfo{.act_bits = 8};
  EXPECT_TRUE(model::CheckInFeatures(config, ternary).ok());
  ternary.bitnet->act_bits = 16;
  status = model::CheckInFeatures(config, ternary);
  EXPECT_THAT(std::string(status.message()), HasSubstr("at most 65536 for ternary with 16-bit activations"));
  EXPECT_TRUE(model::CheckInFeatures(config, bf16).ok());
}

TEST_F(ConvertTest, RejectsUnsupportedConversionsAndLeavesNothing) {
  const auto source = Import("hf_tied_bf16", DType::kBF16, "source");
  ASSERT_TRUE(Convert(*source, "int8", {}).ok());
  const auto int8 = Open("int8");
  ConvertOptions options;
  EXPECT_TRUE(absl::IsInvalidArgument(Convert(*int8, "again", options).status()));
  for (const Format to : {Format::kF32, Format::kBF16, Format::kLora}) {
    options.to = to;
    EXPECT_TRUE(absl::IsInvalidArgument(Convert(*source, "again", options).status()));
  }
  options.to = Format::kTernary;
  EXPECT_TRUE(absl::IsInvalidArgument(Convert(*int8, "again", options).status()));
  options = {};
  for (const int outliers : {-1, 17}) {
    options.act_outliers = outliers;
    const auto status = Convert(*source, "again", options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_EQ(base::ReasonMetadata(status)["field"], "act_outliers");
  }
  EXPECT_TRUE(absl::IsAlreadyExists(Convert(*source, "int8", {}).status()));
  EXPECT_FALSE(std::filesystem::exists(directory_.Path("again")));
}

TEST_F(ConvertTest, ConversionWithoutMeasuringGivesTheSameModel) {  // T11
  const auto source = Import("hf_tied_bf16", DType::kBF16, "bf16");
  for (const Format to : {Format::kNf4, Format::kInt8, Format::kTernary}) {
    SCOPED_TRACE(Name(to));
    const auto measured = Convert(*source, std::string("measured_") + Name(to), {.to = to});
    const auto unmeasured =
        Convert(*source, std::string("unmeasured_") + Name(to), {.to = to, .measure_errors = false});
    ASSERT_TRUE(measured.ok() && unmeasured.ok()) << measured.status() << unmeasured.status();
    EXPECT_FALSE(measured->layers.empty());
    EXPECT_TRUE(unmeasured->layers.empty());
    EXPECT_EQ(unmeasured->info.weights_digest, measured->info.weights_digest);
  }
}

TEST_F(ConvertTest, AdapterSharesTheFileOfItsBase) {  // T10
  const auto source = Import("hf_tied_bf16", DType::kBF16, "bf16");
  ASSERT_TRUE(Convert(*source, "nf4", {.to = Format::kNf4}).ok());
  const auto nf4 = Open("nf4");
  const auto lora = Lora(*nf4, "lora");
  const std::string own = directory_.Path("nf4/model.safetensors"), shared = directory_.Path("lora/model.safetensors");
  // Two files that the file system shares as links are one file; as clones they have inodes of their own.
  const std::string probe = directory_.Path("probe"), other = directory_.Path("other");
  std::ofstream(probe) << "x";
  const bool can_share = model::ShareFile(probe, other);
  const bool links = can_share && std::filesystem::equivalent(probe, other);
  if (links) {
    EXPECT_TRUE(std::filesystem::equivalent(own, shared));
  }
  EXPECT_EQ(model::ReadBytes(own), model::ReadBytes(shared));
  std::filesystem::remove_all(directory_.Path("nf4"));
  EXPECT_TRUE(lora->VerifyBytes().ok()) << "the adapter must survive deletion of the base";
  if (!links) GTEST_SKIP() << "this file system clones or copies files, so their inodes differ";
}

TEST_F(ConvertTest, AdapterCopiesTheBaseFileIfItCannotBeShared) {
  const auto source = Import("hf_tied_bf16", DType::kBF16, "bf16");
  ASSERT_TRUE(Convert(*source, "nf4", {.to = Format::kNf4}).ok());
  const auto nf4 = Open("nf4");
  const auto shared = Lora(*nf4, "shared");
  std::filesystem::remove(directory_.Path("nf4/model.safetensors"));  // still mapped, but there is no file to link
  const auto copied = Lora(*nf4, "copied");
  EXPECT_EQ(copied->info().weights_digest, shared->info().weights_digest);
  EXPECT_EQ(model::ReadBytes(directory_.Path("copied/model.safetensors")),
            model::ReadBytes(directory_.Path("shared/model.safetensors")));
}

// The check runs before the conversion and gives the same errors.
TEST_F(ConvertTest, CheckConversionNeedsOnlyTheSourcesInfo) {
  model::ArtifactInfo info;
  const auto ok = [&](Format from, Format to) {
    info.format = from;
    return CheckConversion(info, {.to = to}).ok();
  };
  for (const Format from : {Format::kF32, Format::kBF16}) {
    for (const Format to : {Format::kInt8, Format::kNf4, Format::kTernary})
      EXPECT_TRUE(ok(from, to)) << Name(from) << Name(to);
  }
  for (const Format from : {Format::kNf4, Format::kLora}) {
    EXPECT_TRUE(ok(from, Format::kInt8)) << Name(from);
    EXPECT_FALSE(ok(from, Format::kNf4)) << Name(from);
    EXPECT_FALSE(ok(from, Format::kTernary)) << Name(from);
  }
  for (const Format from : {Format::kF32, Format::kNf4, Format::kLora}) {
    EXPECT_TRUE(ok(from, Format::kBF16)) << Name(from);
  }
  EXPECT_FALSE(ok(Format::kBF16, Format::kBF16));
  for (const Format to : {Format::kInt8, Format::kNf4, Format::kTernary, Format::kBF16}) {
    EXPECT_FALSE(ok(Format::kInt8, to)) << Name(to);
    EXPECT_FALSE(ok(Format::kTernary, to)) << Name(to);
  }
  info.bitnet = model::BitNetInfo();
  EXPECT_TRUE(ok(Format::kF32, Format::kTernary));
  EXPECT_EQ(base::ReasonMetadata(CheckConversion(info, {.to = Format::kInt8}))["field"], "target");
  EXPECT_FALSE(ok(Format::kF32, Format::kBF16));
}

TEST_F(ConvertTest, RejectsNonFiniteAdapterAndLeavesNothing) {
  const auto source = Import("hf_tied_bf16", DType::kBF16, "source");
  ConvertOptions to_nf4;
  to_nf4.to = Format::kNf4;
  ASSERT_TRUE(Convert(*source, "nf4", to_nf4).ok());
  adapter_.rank = 3;
  adapter_.targets = {model::LinearKind::kQ};
  auto values = AdapterValues(source->config(), adapter_);
  values[1][5] = std::numeric_limits<float>::infinity();  // a run that diverged
  ASSERT_TRUE(
      MakeLoraModel(files_, *Open("nf4"), adapter_, values, base::Json::object(), directory_.Path("lora")).ok());
  for (const Format to : {Format::kInt8, Format::kBF16}) {
    const auto status = Convert(*Open("lora"), "made", {.to = to}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("q_proj"));
    EXPECT_FALSE(std::filesystem::exists(directory_.Path("made")));
  }
}

TEST_F(ConvertTest, ConvertsTheRealModelToInt8AndNf4) {
  const std::string gguf = NIBBLE_SMOLLM2_GGUF;
  if (gguf.empty() || !std::filesystem::exists(gguf)) GTEST_SKIP() << "no SmolLM2 GGUF file: run deploy/setup.sh";
  ASSERT_TRUE(model::ImportModel(files_, gguf, directory_.Path("real"), DType::kBF16).ok());
  const auto source = Open("real");
  kernels::ThreadPool pool(2);
  kernels::Stream stream;
  stream.isa = support::Isas().back();
  stream.pool = &pool;
  for (const Format to : {Format::kInt8, Format::kNf4}) {
    ConvertOptions options;
    options.to = to;
    const auto report = ConvertModel(files_, *source, directory_.Path(Name(to)), options, stream);
    ASSERT_TRUE(report.ok()) << report.status();
    // Seven linears in each of 30 layers; int8 also quantizes the head.
    EXPECT_EQ(report->layers.size(), to == Format::kInt8 ? 211u : 210u);
    double worst = 0;
    for (const LayerError& layer : report->layers) worst = std::max(worst, layer.relative_error);
    EXPECT_LT(worst, to == Format::kInt8 ? 0.05 : 0.15);
    Open(Name(to));
  }
}

TEST_F(ConvertTest, CancelAtAnyPointLeavesNothing) {
  const auto source = Import("hf_tied_bf16", DType::kBF16, "source");
  const auto tensors = static_cast<int>(source->tensors().size());
  const auto nf4 = Convert(*source, "nf4", {.to = Format::kNf4});
  ASSERT_TRUE(nf4.ok()) << nf4.status();
  const auto base = Open("nf4");
  support::CancelAt cancel;
  const auto expect_stops = [&](const char* what, const std::function<absl::Status(const std::string&)>& make) {
    cancel.Restart(0);
    ASSERT_TRUE(make("whole").ok()) << what;
    std::filesystem::remove_all(directory_.Path("whole"));
    const int calls = cancel.calls();
    EXPECT_GE(calls, tensors) << what;
    for (int at = 1; at <= calls; ++at) {
      cancel.Restart(at);
      EXPECT_EQ(make("stopped").code(), absl::StatusCode::kCancelled) << what << ", call " << at;
      EXPECT_FALSE(std::filesystem::exists(directory_.Path("stopped"))) << what;
    }
  };
  for (const Format to : {Format::kInt8, Format::kNf4, Format::kTernary}) {
    expect_stops(Name(to), [&](const std::string& name) {
      return Convert(*source, name, {.to = to, .cancelled = cancel.callback()}).status();
    });
  }
  expect_stops("bf16", [&](const std::string& name) {
    return Convert(*base, name, {.to = Format::kBF16, .cancelled = cancel.callback()}).status();
  });
  adapter_.targets = {model::LinearKind::kQ};
  const auto values = AdapterValues(base->config(), adapter_);
  expect_stops("lora", [&](const std::string& name) {
    return MakeLoraModel(files_, *base, adapter_, values, base::Json::object(), directory_.Path(name), "job",
                         cancel.callback())
        .status();
  });
}

}  // namespace
}  // namespace nibble::convert
