#include "server/convert/adapter_init.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/thread_pool.h"
#include "server/base/error.h"
#include "server/convert/low_rank.h"
#include "server/model/adapter_targets.h"
#include "server/model/safetensors.h"
#include "tests/server/convert/convert_fixture.h"
#include "tests/support/cancel_at.h"
#include "tests/support/isas.h"
#include "tests/support/numeric.h"

namespace nibble::convert {
namespace {

using kernels::DType;
using model::Artifact;
using model::Format;
using model::LinearKind;
using ::testing::HasSubstr;

class AdapterInitTest : public ConvertTest {
 protected:
  void SetUp() override { source_ = Import("hf_tied_bf16", DType::kF32, "source"); }

  // Rank 3 on all linears but k_proj and v_proj; up_proj has rank 5, and down_proj another alpha.
  static AdapterInit Init(InitMethod method, int iterations = 1) {
    AdapterInit init = {.method = method, .adapter = {}, .iterations = iterations};
    init.adapter.rank = 3;
    init.adapter.alpha = 12;
    init.adapter.targets = {LinearKind::kQ, LinearKind::kO, LinearKind::kGate, LinearKind::kUp, LinearKind::kDown};
    init.adapter.rank_pattern.emplace_back(*model::ModulePattern::Create("up_proj"), 5);
    init.adapter.alpha_pattern.emplace_back(*model::ModulePattern::Create("down_proj"), 2.5);
    return init;
  }
  ConvertReport Made(const std::string& name, const ConvertOptions& options) {
    auto report = Convert(*source_, name, options);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *std::move(report) : ConvertReport();
  }
  // The adapter of a conversion, by the names of its tensors.
  std::map<std::string, std::vector<float>> AdapterOf(const ConvertReport& report, const AdapterInit& init) {
    const auto plan = model::AdapterTensors(source_->config(), init.adapter);
    EXPECT_EQ(plan.size(), report.adapter.size());
    std::map<std::string, std::vector<float>> tensors;
    for (std::size_t i = 0; i < report.adapter.size(); ++i) {
      EXPECT_EQ(static_cast<std::int64_t>(report.adapter[i].size()), plan[i].shape[0] * plan[i].shape[1]);
      tensors[plan[i].name] = report.adapter[i];
    }
    return tensors;
  }
  void ForEachTarget(const AdapterInit& init,
                     const std::function<void(const model::TensorSpec&, const model::LinearAdapter&)>& body) {
    int count = 0;
    for (const model::TensorSpec& spec : model::RequiredTensors(source_->config())) {
      const auto on = model::AdapterOn(init.adapter, spec);
      if (!on.has_value()) continue;
      ++count;
      body(spec, *on);
    }
    EXPECT_EQ(count, 5 * source_->config().num_layers);
  }

  std::unique_ptr<Artifact> source_;
};

double SumOfErrors(const ConvertReport& report) {
  double sum = 0;
  for (const LayerError& layer : report.layers) sum += layer.relative_error;
  return sum;
}

TEST_F(AdapterInitTest, PissaTakesTheLargestPartsAndLeavesTheRest) {
  const AdapterInit init = Init(InitMethod::kPissa);
  const ConvertReport report = Made("base", {.to = Format::kF32, .adapter_init = init});
  const auto base = Open("base");
  EXPECT_EQ(base->info().kv_dtype, source_->info().kv_dtype);
  const auto adapter = AdapterOf(report, init);
  ForEachTarget(init, [&](const model::TensorSpec& spec, const model::LinearAdapter& on) {
    const std::vector<float> w = *source_->FloatTensor(spec.name), rest = *base->FloatTensor(spec.name);
    const std::string module = model::LoraModule(spec.name.substr(0, spec.name.rfind('.')));
    const std::vector<float>& a = adapter.at(module + model::kLoraASuffix);
    const std::vector<float>& b = adapter.at(module + model::kLoraBSuffix);
    const std::int64_t rows = spec.shape[0], cols = spec.shape[1];
    const auto parts =
        LargestParts(kernels::MakeConstMatrix(w.data(), DType::kF32, rows, cols), on.rank, kernels::Stream(), {});
    ASSERT_TRUE(parts.ok()) << parts.status();
    const auto expect_shared = [&](const std::vector<float>& got, const std::vector<float>& part) {
      ASSERT_EQ(got.size(), part.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], static_cast<float>(static_cast<double>(part[i]) / std::sqrt(on.scaling))) << spec.name << i;
      }
    };
    expect_shared(a, parts->a);
    expect_shared(b, parts->b);
    for (std::int64_t at = 0; at < rows * cols; ++at) {
      double product = 0, magnitude = 0;
      for (std::int64_t t = 0; t < on.rank; ++t) {
        const double term = static_cast<double>(b[static_cast<std::size_t>(at / cols * on.rank + t)]) *
                            static_cast<double>(a[static_cast<std::size_t>(t * cols + at % cols)]) * on.scaling;
        product += term;
        magnitude += std::fabs(term);
      }
      // A chain over the rank, one multiplication by a rounded scaling, and one subtraction.
      const auto whole = static_cast<double>(w[static_cast<std::size_t>(at)]);
      const double bound = support::Gamma(on.rank + 3) * magnitude + support::kEpsF32 * (std::fabs(whole) + magnitude);
      ASSERT_NEAR(static_cast<double>(rest[static_cast<std::size_t>(at)]) + product, whole, bound)
          << spec.name << " " << at;
    }
  });
  EXPECT_EQ(report.layers.size(), static_cast<std::size_t>(5 * source_->config().num_layers));
  for (const LayerError& layer : report.layers) EXPECT_LT(layer.relative_error, 1e-6) << layer.name;
}

TEST_F(AdapterInitTest, BaseInEveryFormatIsTheConvertedRest) {
  const AdapterInit init = Init(InitMethod::kPissa);
  const ConvertReport want = Made("rest", {.to = Format::kF32, .adapter_init = init});
  const auto rest = Open("rest");
  for (const Format to : {Format::kBF16, Format::kNf4}) {
    const std::string name = model::Name(to);
    const ConvertReport report = Made(name, {.to = to, .adapter_init = init});
    EXPECT_EQ(report.adapter, want.adapter) << name;
    const auto converted = Convert(*rest, name + "-of-rest", {.to = to});
    ASSERT_TRUE(converted.ok()) << converted.status();
    EXPECT_EQ(report.info.weights_digest, converted->info.weights_digest) << name;
  }
}

TEST_F(AdapterInitTest, OtherTensorsAreThoseOfAPlainConversion) {
  const AdapterInit init = Init(InitMethod::kPissa);
  Made("base", {.to = Format::kNf4, .adapter_init = init});
  Made("plain", {.to = Format::kNf4});
  const auto base = Open("base"), plain = Open("plain");
  int differing = 0;
  for (const auto& [name, view] : plain->tensors()) {
    const auto got = base->Tensor(name);
    ASSERT_TRUE(got.ok()) << name;
    const bool target = init.adapter.On(name.substr(0, name.rfind('.'))).has_value();
    if (target) {
      differing += std::ranges::equal(view.bytes, got->bytes) ? 0 : 1;
    } else {
      EXPECT_TRUE(std::ranges::equal(view.bytes, got->bytes)) << name;
    }
  }
  EXPECT_GE(differing, 5 * 2 * source_->config().num_layers) << "codes and absmax of five linears in each layer";
}

TEST_F(AdapterInitTest, PissaHasASmallerErrorThanPlainNf4) {
  const AdapterInit init = Init(InitMethod::kPissa);
  EXPECT_LT(SumOfErrors(Made("base", {.to = Format::kNf4, .adapter_init = init})),
            SumOfErrors(Made("plain", {.to = Format::kNf4})));
}

TEST_F(AdapterInitTest, LoftqBaseOfOneIterationIsThePlainNf4Base) {
  for (const model::Nf4Options& nf4 : {model::Nf4Options{}, model::Nf4Options{.block = 32, .double_quant = false}}) {
    const std::string tag = std::to_string(nf4.block);
    const ConvertReport plain = Made("plain" + tag, {.to = Format::kNf4, .nf4 = nf4});
    const ConvertReport once =
        Made("once" + tag, {.to = Format::kNf4, .nf4 = nf4, .adapter_init = Init(InitMethod::kLoftq)});
    EXPECT_EQ(once.info.weights_digest, plain.info.weights_digest);
    const ConvertReport five =
        Made("five" + tag, {.to = Format::kNf4, .nf4 = nf4, .adapter_init = Init(InitMethod::kLoftq, 5)});
    EXPECT_NE(five.info.weights_digest, plain.info.weights_digest);
    // PEFT's own test wants an error below that of plain quantization divided by 1.03 (tests/test_gpu_examples.py).
    double adapted = 0, plainly = 0, more = 0;
    ForEachTarget(Init(InitMethod::kLoftq), [&](const model::TensorSpec& spec, const model::LinearAdapter& /*on*/) {
      const auto error = [&](const ConvertReport& report) {
        return std::find_if(report.layers.begin(), report.layers.end(),
                            [&](const LayerError& layer) { return layer.name == spec.name; })
            ->relative_error;
      };
      EXPECT_LT(error(once), error(plain) / 1.03) << spec.name;
      EXPECT_LT(error(five), error(plain) / 1.03) << spec.name;
      adapted += error(once);
      plainly += error(plain);
      more += error(five);
    });
    RecordProperty("once_and_five_of_plain" + tag,
                   std::to_string(adapted / plainly) + " " + std::to_string(more / plainly));
    EXPECT_LT(more, adapted);
  }
}

TEST_F(AdapterInitTest, ReportHasTheErrorOfTheStoredBaseWithItsAdapter) {
  for (const auto& [method, to] :
       {std::pair(InitMethod::kLoftq, Format::kNf4), std::pair(InitMethod::kPissa, Format::kNf4),
        std::pair(InitMethod::kPissa, Format::kBF16)}) {
    const std::string tag = std::string(Name(method)) + "-" + model::Name(to);
    const AdapterInit init = Init(method);
    const ConvertReport report = Made(tag, {.to = to, .adapter_init = init});
    const auto info =
        MakeLoraModel(files_, *Open(tag), init.adapter, report.adapter, {}, directory_.Path(tag + "-lora"), "convert");
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->base_digest, report.info.weights_digest);
    const auto lora = Open(tag + "-lora");
    for (const LayerError& layer : report.layers) {
      auto reader = WeightReader::Open(*lora, layer.name, kernels::Stream());
      ASSERT_TRUE(reader.ok()) << reader.status();
      const auto rows = reader->Rows(0, reader->rows());
      ASSERT_TRUE(rows.ok()) << rows.status();
      const std::vector<float> w = *source_->FloatTensor(layer.name);
      double difference = 0, whole = 0;
      for (std::size_t i = 0; i < w.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i);
        difference += std::pow(At(*rows, at / rows->cols, at % rows->cols) - w[i], 2);
        whole += std::pow(w[i], 2);
      }
      EXPECT_NEAR(layer.relative_error, std::sqrt(difference / whole), 1e-6) << tag << " " << layer.name;
    }
  }
}

TEST_F(AdapterInitTest, BitsDependNeitherOnThreadsNorOnTheInstructionSet) {
  for (const InitMethod method : {InitMethod::kPissa, InitMethod::kLoftq}) {
    const ConvertOptions options = {.to = Format::kNf4,
                                    .adapter_init = Init(method, method == InitMethod::kLoftq ? 2 : 1)};
    const ConvertReport want = Made(Name(method), options);
    for (const kernels::Isa isa : support::Isas()) {
      for (const int threads : {1, 3}) {
        kernels::ThreadPool pool(threads);
        const std::string name = std::string(Name(method)) + kernels::Name(isa) + std::to_string(threads);
        const auto got = ConvertModel(files_, *source_, directory_.Path(name), options, support::CpuStream(isa, &pool));
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_EQ(got->info.weights_digest, want.info.weights_digest) << name;
        EXPECT_EQ(got->adapter, want.adapter) << name;
      }
    }
  }
}

TEST_F(AdapterInitTest, BaseForgetsWhereItsSourceIsFound) {
  model::ArtifactInfo info = source_->info();
  info.provenance[model::kSourceName] = "org/model";
  ASSERT_TRUE(model::WriteArtifactInfo(files_, source_->directory(), info).ok());
  source_ = Open("source");
  Made("base", {.to = Format::kNf4, .adapter_init = Init(InitMethod::kLoftq, 3)});
  Made("plain", {.to = Format::kNf4});
  EXPECT_EQ(model::SourceName(Open("plain")->info()), "org/model");
  const auto base = Open("base");
  EXPECT_EQ(model::SourceName(base->info()), "");
  EXPECT_EQ(base->info().provenance[kAdapterInit], (base::Json{{"method", "loftq"}, {"iterations", 3}}));
}

TEST_F(AdapterInitTest, CancellationLeavesNothing) {
  support::CancelAt cancel;
  const ConvertOptions options = {
      .to = Format::kNf4, .adapter_init = Init(InitMethod::kLoftq), .cancelled = cancel.callback()};
  ASSERT_TRUE(Convert(*source_, "whole", options).ok());
  const int calls = cancel.calls();
  for (int at = 1; at <= calls; at += std::max(1, calls / 9)) {  // about ten moments of the work
    cancel.Restart(at);
    EXPECT_TRUE(absl::IsCancelled(Convert(*source_, "cancelled", options).status())) << at;
    EXPECT_FALSE(std::filesystem::exists(directory_.Path("cancelled"))) << at;
  }
}

struct Refusal {
  std::string field, text;
  std::function<void(ConvertOptions&)> edit;
};

TEST_F(AdapterInitTest, RefusesOptionsThatNoBaseOrAdapterCanHold) {
  const auto pattern = [](const char* text) { return *model::ModulePattern::Create(text); };
  const Refusal refusals[] = {
      {"target", "int8 cannot be the base of a pissa adapter, wanted nf4, bf16 or f32",
       [](auto& o) { o.to = Format::kInt8; }},
      {"target", "ternary cannot be", [](auto& o) { o.to = Format::kTernary; }},
      {"target", "bf16 cannot be the base of a loftq adapter, wanted nf4",
       [](auto& o) { o.to = Format::kBF16, o.adapter_init->method = InitMethod::kLoftq; }},
      {"adapter_init.r", "q_proj.weight [32, 32] the rank 33, wanted at most 32",
       [](auto& o) { o.adapter_init->adapter.rank = 33; }},
      {"adapter_init.r", "up_proj.weight [64, 32] the rank 40",
       [&](auto& o) { o.adapter_init->adapter.rank_pattern = {{pattern("up_proj"), 40}}; }},
      {"adapter_init", "use_dora", [](auto& o) { o.adapter_init->adapter.dora = true; }},
      {"adapter_init.iterations", "is 2, wanted 1 for PISSA", [](auto& o) { o.adapter_init->iterations = 2; }},
      {"adapter_init.iterations", "is 17, wanted 1 to 16",
       [](auto& o) { o.adapter_init->iterations = 17, o.adapter_init->method = InitMethod::kLoftq; }},
      {"adapter_init.target_pattern", "lm_head",
       [&](auto& o) {
         o.adapter_init->adapter.targets.clear();
         o.adapter_init->adapter.target_pattern = pattern(".*(_proj|lm_head)");
       }},
      {"adapter_init.rank_pattern", "matches no linear",
       [&](auto& o) { o.adapter_init->adapter.rank_pattern = {{pattern("k_proj"), 2}}; }},
      {"adapter_init.alpha_pattern", "both match",
       [&](auto& o) {
         o.adapter_init->adapter.alpha_pattern = {{pattern("up_proj"), 2}, {pattern("(up|gate)_proj"), 3}};
       }},
  };
  for (const Refusal& refusal : refusals) {
    ConvertOptions options = {.to = Format::kNf4, .adapter_init = Init(InitMethod::kPissa)};
    refusal.edit(options);
    const absl::Status status = Convert(*source_, "bad", options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(base::ReasonMetadata(status)["field"], refusal.field) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(refusal.text));
    EXPECT_FALSE(std::filesystem::exists(directory_.Path("bad")));
  }
}

TEST_F(AdapterInitTest, RefusesASourceWithoutFloatWeights) {
  Made("int8", {});
  Made("nf4", {.to = Format::kNf4});
  Lora(*Open("nf4"), "lora");
  for (const std::string name : {"int8", "nf4", "lora"}) {
    const absl::Status status =
        Convert(*Open(name), "bad", {.to = Format::kNf4, .adapter_init = Init(InitMethod::kPissa)}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(base::ReasonMetadata(status)["field"], "adapter_init");
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("a model in format " + name + ", wanted an f32 or bf16 model"));
  }
  model::ArtifactInfo masters = source_->info();
  masters.bitnet.emplace();
  const absl::Status status = CheckConversion(masters, {.to = Format::kNf4, .adapter_init = Init(InitMethod::kPissa)});
  EXPECT_THAT(std::string(status.message()), HasSubstr("master weights of a BitNet model"));
}

}  // namespace
}  // namespace nibble::convert
