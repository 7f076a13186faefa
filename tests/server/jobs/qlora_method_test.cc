#include "server/jobs/qlora_method.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "server/base/error.h"
#include "server/base/strings.h"
#include "tests/server/jobs/job_spec_fixture.h"

namespace nibble::jobs {
namespace {

using ::testing::HasSubstr;

QLoraMethod WithBlocks(std::optional<std::int64_t> nf4_block, std::optional<std::int64_t> scaler_block) {
  QLoraMethod qlora;
  qlora.nf4_block = nf4_block;
  qlora.scaler_block = scaler_block;
  return qlora;
}

TEST(QLoraMethodTest, Nf4BlocksArePowersOfTwo) {
  JobSpec spec = Good();
  for (const std::int64_t block : {32, 64, 4096}) {
    spec.qlora.nf4_block = spec.qlora.scaler_block = block;
    EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
  }
  for (const std::int64_t block : {-64, 0, 16, 96, 8192}) {
    spec.qlora.nf4_block = spec.qlora.scaler_block = block;
    const std::string message = base::StrCat("is ", block, ", wanted a power of two from 32 to 4096");
    EXPECT_EQ(base::ReasonMetadata(Validate(spec))["qlora.nf4_block"], message);
    EXPECT_EQ(base::ReasonMetadata(Validate(spec))["qlora.scaler_block"], message);
  }
}

TEST(QLoraMethodTest, ScalerBlocksNeedDoubleQuantization) {
  JobSpec spec = Good();
  spec.qlora.double_quant = false;
  EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
  spec.qlora.scaler_block = 256;
  EXPECT_THAT(base::ReasonMetadata(Validate(spec))["qlora.scaler_block"], HasSubstr("wanted unset with double_quant"));
}

TEST(QLoraMethodTest, SetOptionsMustMatchThoseOfAnNf4Base) {
  const auto error = [](const QLoraMethod& qlora, const model::Nf4Options& base) {
    return std::string(CheckNf4Base(qlora, base).message());
  };
  const model::Nf4Options wide = {.block = 128}, floats = {.double_quant = false};
  EXPECT_EQ(error({}, {}), "");
  EXPECT_EQ(error({}, wide), "") << "options that are not set fit every base";
  EXPECT_EQ(error({}, floats), "");
  EXPECT_EQ(error(WithBlocks(128, 256), wide), "");
  EXPECT_THAT(error(WithBlocks(64, std::nullopt), wide), HasSubstr("qlora.nf4_block"));
  EXPECT_THAT(error(WithBlocks(64, std::nullopt), wide), HasSubstr("blocks of 128"));
  EXPECT_THAT(error(WithBlocks(std::nullopt, 64), {}), HasSubstr("qlora.scaler_block"));
  EXPECT_THAT(error(WithBlocks(std::nullopt, 256), floats), HasSubstr("qlora.scaler_block"));
  QLoraMethod without;
  without.double_quant = false;
  EXPECT_EQ(error(without, floats), "");
  EXPECT_THAT(error(without, {}), HasSubstr("qlora.double_quant"));
}

}  // namespace
}  // namespace nibble::jobs
