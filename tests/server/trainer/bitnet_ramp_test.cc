// The ramp of warmup_lambda, during which only a share of weights and activations is quantized.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/trainer/bitnet_model.h"
#include "tests/server/trainer/bitnet_model_fixture.h"

namespace nibble::trainer {
namespace {

// From the end of the ramp on, the passes are those of a model without a ramp.
TEST_F(BitNetModelTest, RampEndsInTheServedArithmetic) {
  for (const char* preset : {"native", "bitnet-tips"}) {
    Make("hf_sharded_f32", preset, {.ste = kernels::Ste::kRoundOnly});
    const PassResult plain = Pass(Batch({Tokens(1, 9), Tokens(2, 17)}));
    Make("hf_sharded_f32", preset, {.ste = kernels::Ste::kRoundOnly, .ramp = {.from = 0.0, .steps = 2}});
    std::vector<double> losses;
    for (const std::int64_t step : {0, 1, 2, 3}) {
      model_->BeginStep(step);
      const PassResult result = Pass(Batch({Tokens(1, 9), Tokens(2, 17)}));
      losses.push_back(result.loss);
      if (step >= 2) {
        EXPECT_EQ(result.loss, plain.loss);
        EXPECT_EQ(result.gradients, plain.gradients);
      }
    }
    EXPECT_NE(losses[0], losses[1]);
    EXPECT_NE(losses[1], losses[2]);
  }
}

// A resumed run makes no BeginStep calls for earlier steps, and must continue the ramp.
TEST_F(BitNetModelTest, RampDependsOnlyOnTheStep) {
  const QuantizationRamp ramp = {.from = 0.25, .steps = 4};
  EXPECT_EQ(ramp.Share(0), 0.25);
  EXPECT_EQ(ramp.Share(2), 0.625);
  EXPECT_EQ(ramp.Share(4), 1.0);
  EXPECT_EQ(ramp.Share(1000), 1.0);
  EXPECT_EQ(QuantizationRamp().Share(0), 1.0);
  Make("hf_sharded_f32", "native", {.ramp = ramp});
  const auto batch = Batch({Tokens(1, 9)});
  for (const std::int64_t step : {0, 1, 2, 3}) model_->BeginStep(step);
  const PassResult in_order = Pass(batch);
  Make("hf_sharded_f32", "native", {.ramp = ramp});
  model_->BeginStep(3);
  const PassResult at_once = Pass(batch);
  EXPECT_EQ(at_once.loss, in_order.loss);
  EXPECT_EQ(at_once.gradients, in_order.gradients);
}

// Evaluations and the record of the result use the served arithmetic, also at the start of a ramp.
TEST_F(BitNetModelTest, ServedLogitsDoNotDependOnTheRamp) {
  const auto tokens = [&] { return Tokens(5, 33); };  // to be called after Make, which sets the vocabulary
  Make("hf_sharded_f32", "bitnet-2b4t");
  const auto plain = TrainingDigests(*model_, tokens());
  Make("hf_sharded_f32", "bitnet-2b4t", {.ramp = {.from = 0.0, .steps = 10}});
  model_->BeginStep(0);
  EXPECT_EQ(ServingDigests(tokens(), 33, stream_), plain);
  EXPECT_EQ(TrainingDigests(*model_, tokens()), plain);
}

TEST_F(BitNetModelTest, RampTrainsEveryParameterWithAndWithoutRecomputedLayers) {
  std::vector<std::map<std::string, std::vector<float>>> gradients;
  for (const bool checkpointing : {false, true}) {
    for (const char* preset : {"native", "bitnet-2b4t"}) {
      Make("families/qwen2", preset,
           {.ste = kernels::Ste::kRoundOnly,
            .scale_grad = true,
            .ramp = {.from = 0.5, .steps = 2},
            .activation_checkpointing = checkpointing});
      gradients.push_back(Pass(Batch({Tokens(1, 9), Tokens(2, 17)})).gradients);
      for (const auto& [name, gradient] : gradients.back()) {
        double sum = 0;
        for (const float g : gradient) sum += std::fabs(static_cast<double>(g));
        EXPECT_TRUE(std::isfinite(sum) && sum > 0) << name;
      }
    }
  }
  EXPECT_EQ(gradients[0], gradients[2]);
  EXPECT_EQ(gradients[1], gradients[3]);
}

}  // namespace
}  // namespace nibble::trainer
