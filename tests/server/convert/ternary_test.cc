// Makes master weights ternary, once, and checks the promises of a ternary artifact.
#include "server/convert/ternary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "kernels/formats/ternary.h"
#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/convert/checkpoint_model.h"
#include "server/convert/convert.h"
#include "server/convert/export.h"
#include "server/model/tensor_table.h"
#include "tests/server/convert/convert_fixture.h"
#include "tests/server/convert/ternary_fixture.h"
#include "tests/support/isas.h"
#include "tests/support/random.h"

namespace nibble::convert {
namespace {

using kernels::DType;
using kernels::RowScaling;
using model::Format;
using ::testing::HasSubstr;

kernels::ConstMatrix View(const std::vector<float>& values, std::int64_t rows) {
  return kernels::MakeConstMatrix(values.data(), DType::kF32, rows, static_cast<std::int64_t>(values.size()) / rows);
}

std::vector<float> Decode(const TernaryWeight& weight, std::int64_t rows, std::int64_t cols) {
  std::vector<std::int8_t> codes(static_cast<std::size_t>(rows * cols));
  EXPECT_TRUE(kernels::TernaryRowsToCodes(weight.rows.data(), rows, cols, codes.data()));
  std::vector<float> values;
  for (const std::int8_t code : codes) values.push_back(static_cast<float>(code) * weight.scale);
  return values;
}

TEST(TernarizeOnceTest, ScaleIsTheMeanMagnitude) {
  const std::vector<float> weight = {0.5f, -0.25f, 0.0f, 1.25f, -2.0f, 0.125f};  // mean magnitude 0.6875
  const auto made = TernarizeOnce("w", View(weight, 2), RowScaling::kNative, kernels::Stream());
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->scale, 0.6875f);
  EXPECT_EQ(Decode(*made, 2, 3), (std::vector<float>{0.6875f, 0.0f, 0.0f, 0.6875f, -0.6875f, 0.0f}));
}

TEST(TernarizeOnceTest, RejectsTernaryWeightsByName) {
  const std::vector<float> masters = support::NormalVector(3, 8 * 20, 0.1f);
  const auto once = TernarizeOnce("w", View(masters, 8), RowScaling::kNative, kernels::Stream());
  ASSERT_TRUE(once.ok()) << once.status();
  const auto twice =
      TernarizeOnce("layer.weight", View(Decode(*once, 8, 20), 8), RowScaling::kNative, kernels::Stream());
  EXPECT_TRUE(absl::IsFailedPrecondition(twice.status())) << twice.status();
  EXPECT_EQ(base::Reason(twice.status()), "ALREADY_TERNARY");
  EXPECT_THAT(std::string(twice.status().message()), HasSubstr("layer.weight"));
}

TEST(TernarizeOnceTest, RejectsNonFiniteWeights) {
  for (const float bad : {NAN, INFINITY}) {
    std::vector<float> weight = support::NormalVector(3, 64, 0.1f);
    weight[33] = bad;
    EXPECT_TRUE(
        absl::IsInvalidArgument(TernarizeOnce("w", View(weight, 4), RowScaling::kNative, kernels::Stream()).status()));
  }
}

// transformers ternarizes the masters of bitnet/auto_online at every forward pass. Converted, they give the same
// logprobs.
TEST_F(TernaryTest, ConvertedMastersMatchTransformersOnlineModel) {
  const auto masters = Import("bitnet", "auto_online");
  const auto report = ToTernary(*masters, "ternary");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->info.format, Format::kTernary);
  EXPECT_EQ(report->info.base_digest, masters->info().weights_digest);
  EXPECT_EQ(report->info.kv_dtype, DType::kF32);  // as the masters say
  EXPECT_EQ(report->layers.size(), 14u);
  for (const LayerError& layer : report->layers) EXPECT_NEAR(layer.relative_error, 0.51, 0.1) << layer.name;
  const auto loaded = model::LoadedModel::Load(directory_.Path("ternary"), {}, stream_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ExpectLogprobsOfTransformers(**loaded, "bitnet", "auto_online");
}

TEST_F(TernaryTest, SameMastersGiveSameBytesOnEveryPathAndThreadCount) {
  const auto masters = Import("families", "llama");
  std::string digest;
  for (const kernels::Isa isa : support::Isas()) {
    for (const int threads : {1, 2}) {
      kernels::ThreadPool pool(threads);
      kernels::Stream stream;
      stream.isa = isa;
      stream.pool = &pool;
      const std::string name = base::StrCat("t", static_cast<int>(isa), threads);
      const auto report = ToTernary(*masters, name, stream);
      ASSERT_TRUE(report.ok()) << report.status();
      if (digest.empty()) digest = report->info.weights_digest;
      EXPECT_EQ(report->info.weights_digest, digest);
    }
  }
}

// docs/numerics.md 9: batches, phases, instruction sets, threads.
TEST_F(TernaryTest, LogitsHaveTheSameBitsForAnyChunkPathAndThreadCount) {
  for (const auto& [group, name] :
       {std::pair{"families", "llama"}, {"families", "qwen3"}, {"families", "bitnet"}, {"bitnet", "rms_norm"}}) {
    const auto source = Import(group, name, DType::kBF16);
    std::string ternary = "model";
    if (source->info().format != Format::kTernary) {
      ternary = std::string("ternary_") + name;
      ASSERT_TRUE(ToTernary(*source, ternary).ok());
    }
    const std::vector<std::string> want = Digests(ternary, 70, kernels::Stream());
    ASSERT_EQ(want.size(), 70u);
    for (const kernels::Isa isa : support::Isas()) {
      kernels::ThreadPool pool(2);
      kernels::Stream stream;
      stream.isa = isa;
      for (const std::int64_t chunk : {1, 7, 64}) {
        stream.pool = chunk == 7 ? &pool : nullptr;
        EXPECT_EQ(Digests(ternary, chunk, stream), want)
            << name << ", isa " << static_cast<int>(isa) << ", chunk " << chunk;
      }
    }
  }
}

TEST_F(TernaryTest, TernaryModelIsNotConvertedAgain) {
  const auto ternary = Import("bitnet", "bitlinear");
  for (const Format to : {Format::kTernary, Format::kInt8, Format::kNf4}) {
    ConvertOptions options;
    options.to = to;
    const auto status = ConvertModel(files_, *ternary, directory_.Path("again"), options, {}).status();
    EXPECT_FALSE(status.ok()) << Name(to);
    EXPECT_EQ(base::Reason(status) == "ALREADY_TERNARY", to == Format::kTernary);
    EXPECT_FALSE(std::filesystem::exists(directory_.Path("again")));
  }
}

// A float copy of a ternary model, as other programs save it, is recognized by its tensors.
TEST_F(TernaryTest, RejectsFloatModelOfTernaryValues) {
  const auto source = Import("families", "llama");
  const auto specs = model::RequiredTensors(source->config());
  std::vector<std::vector<float>> values;
  for (const auto& spec : specs) {
    values.push_back(*source->FloatTensor(spec.name));
    if (spec.role != model::TensorRole::kLinear) continue;
    const auto made = TernarizeOnce(spec.name, View(values.back(), spec.shape[0]), RowScaling::kNative, {});
    values.back() = Decode(*made, spec.shape[0], spec.shape[1]);
  }
  const std::vector<TrainedTensor> tensors = Tensors(values);
  ASSERT_TRUE(MakeTrainedModel(files_, source->config(), {model::BitNetInfo(), DType::kBF16}, tensors,
                               source->directory(), base::Json::object(), directory_.Path("copy"))
                  .ok());
  const auto status = ToTernary(*Open("copy"), "again").status();
  EXPECT_EQ(base::Reason(status), "ALREADY_TERNARY") << status;
}

TEST_F(TernaryTest, MastersOfAJobBecomeOnlyTernary) {
  const auto source = Import("families", "llama");
  std::vector<std::vector<float>> values;
  for (const auto& spec : model::RequiredTensors(source->config())) values.push_back(*source->FloatTensor(spec.name));
  std::vector<TrainedTensor> tensors = Tensors(values);
  const model::BitNetInfo bitnet = {.act_bits = 4, .head_dtype = DType::kBF16};
  const auto info = MakeTrainedModel(files_, source->config(), {bitnet, DType::kBF16}, tensors, source->directory(),
                                     {{"job_id", "job-1"}}, directory_.Path("masters"));
  ASSERT_TRUE(info.ok()) << info.status();
  const auto masters = Open("masters");
  EXPECT_EQ(masters->info().bitnet->act_bits, 4);
  EXPECT_EQ(masters->info().source, "job");
  // A checkpoint holds the same tensors and gives the same model, except for its source.
  ASSERT_TRUE(files_.CreateDirectories(directory_.Path("step")).ok());
  std::filesystem::copy_file(directory_.Path("masters/model.safetensors"), directory_.Path("step/state.safetensors"));
  const auto published =
      MakeTrainedCheckpointModel(files_, *source, source->config(), {bitnet, DType::kBF16}, directory_.Path("step"),
                                 {{"job_id", "job-1"}}, directory_.Path("published"));
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_EQ(Open("published")->info().source, "checkpoint");
  EXPECT_EQ(published->weights_digest, info->weights_digest);
  EXPECT_TRUE(absl::IsInvalidArgument(ConvertModel(files_, *masters, directory_.Path("int8"), {}, {}).status()));
  const auto report = ToTernary(*masters, "ternary");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->info.bitnet->act_bits, 4);
  EXPECT_EQ(report->info.kv_dtype, DType::kBF16);
  const auto ternary = Open("ternary");
  EXPECT_EQ(ternary->Tensor(model::kEmbeddingName)->dtype, DType::kBF16);
  EXPECT_EQ(Digests("ternary", 70, {}), Digests("ternary", 9, {}));  // 4-bit activations keep the promise too
  tensors.pop_back();
  EXPECT_TRUE(
      absl::IsInvalidArgument(MakeTrainedModel(files_, source->config(), {bitnet, DType::kBF16}, tensors,
                                               source->directory(), base::Json::object(), directory_.Path("short"))
                                  .status()));
}

// The options of a BitNet job stay with masters, codes and exported files; nibble.json has the version that older
// programs refuse.
TEST_F(TernaryTest, KeepsScalesAndFloatLinearsOfTheMasters) {
  const auto source = Import("families", "llama");
  std::vector<std::vector<float>> values;
  for (const auto& spec : model::RequiredTensors(source->config())) values.push_back(*source->FloatTensor(spec.name));
  model::BitNetInfo bitnet = {.scaling = RowScaling::kReciprocal,
                              .float_linears = {model::LinearKind::kO, model::LinearKind::kDown}};
  ASSERT_TRUE(MakeTrainedModel(files_, source->config(), {bitnet, DType::kBF16}, Tensors(values), source->directory(),
                               base::Json::object(), directory_.Path("masters"))
                  .ok());
  const auto masters = Open("masters");
  ASSERT_TRUE(ToTernary(*masters, "ternary").ok());
  const auto ternary = Open("ternary");
  for (const auto* artifact : {masters.get(), ternary.get()}) {
    EXPECT_EQ(artifact->info().bitnet->scaling, RowScaling::kReciprocal);
    EXPECT_EQ(artifact->info().bitnet->float_linears, bitnet.float_linears);
    EXPECT_EQ(ToJson(artifact->info())["version"], 3);
  }
  const std::string float_name = "model.layers.1.self_attn.o_proj.weight",
                    name = "model.layers.1.self_attn.q_proj.weight";
  EXPECT_EQ(ternary->Tensor(float_name)->dtype, DType::kBF16);
  EXPECT_FALSE(ternary->tensors().contains(float_name + "_scale"));
  const model::TensorView view = *masters->Tensor(name);
  const auto native =
      TernarizeOnce(name, kernels::MakeConstMatrix(view.bytes.data(), view.dtype, view.shape[0], view.shape[1]),
                    RowScaling::kNative, {});
  EXPECT_EQ((*ternary->FloatTensor(name + "_scale"))[0], kernels::ReciprocalScale(native->scale));
  EXPECT_EQ(Digests("ternary", 70, {}), Digests("ternary", 9, {}));
  for (const auto bitnet_class : {HfBitNetClass::kAutoBitLinear, HfBitNetClass::kBitLinear}) {
    const std::string out = directory_.Path("export");
    ASSERT_TRUE(ExportHf(files_, *ternary, out, bitnet_class).ok());
    const auto again = model::ImportModel(files_, out, directory_.Path("again"), DType::kBF16);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->info.bitnet->float_linears, bitnet.float_linears);
    for (const std::string& tensor : {float_name, name, name + "_scale"}) {
      EXPECT_TRUE(std::ranges::equal(Open("again")->Tensor(tensor)->bytes, ternary->Tensor(tensor)->bytes)) << tensor;
    }
    std::filesystem::remove_all(out);
    std::filesystem::remove_all(directory_.Path("again"));
  }
}

// Models without the options `scales` and `float_linears` have the nibble.json that earlier versions wrote.
TEST(BitNetInfoTest, OnlyModelsWithOptionsHaveVersionThree) {
  model::ArtifactInfo info;
  info.format = Format::kTernary;
  info.bitnet.emplace();
  EXPECT_EQ(model::ToJson(info)["version"], 1);
  EXPECT_EQ(base::Dump(model::ToJson(info)["bitnet"]), R"({"act_bits":8,"head_dtype":"bf16"})");
  info.bitnet->scaling = RowScaling::kReciprocal;
  info.bitnet->float_linears = {model::LinearKind::kQ, model::LinearKind::kO};
  EXPECT_EQ(base::Dump(model::ToJson(info)["bitnet"]),
            R"({"act_bits":8,"head_dtype":"bf16","scales":"hf","float_linears":["q_proj","o_proj"]})");
  const auto again = model::ParseArtifactInfo(model::ToJson(info));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->bitnet->scaling, info.bitnet->scaling);
  EXPECT_EQ(again->bitnet->float_linears, info.bitnet->float_linears);
  const auto refused = [&](const auto& edit) { return ErrorOfEdited(info, edit); };
  EXPECT_THAT(refused([](auto& json) { json["version"] = 1; }), HasSubstr("version 1 with"));
  EXPECT_THAT(refused([](auto& json) { json["bitnet"]["scales"] = "other"; }), HasSubstr("\"scales\" is \"other\""));
  EXPECT_THAT(refused([](auto& json) { json["bitnet"]["float_linears"] = {"lm_head"}; }), HasSubstr("\"lm_head\""));
  EXPECT_THAT(refused([](auto& json) { json["bitnet"]["float_linears"] = {"o_proj", "q_proj"}; }), HasSubstr("order"));
  EXPECT_THAT(refused([](auto& json) { json["bitnet"]["float_linears"] = 3; }), HasSubstr("not a list"));
  EXPECT_THAT(refused([](auto& json) {
                json["bitnet"].erase("scales");
                json["bitnet"].erase("float_linears");
              }),
              HasSubstr("version 3 without"));
}

}  // namespace
}  // namespace nibble::convert
