#include "server/registry/model_requests.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "kernels/formats/int8.h"
#include "server/base/error.h"
#include "tests/support/field_of.h"

namespace nibble::registry {
namespace {

using model::Format;
using nibble::testing::FieldOf;

ConvertRequest To(Format target) {
  ConvertRequest request;
  request.target = target;
  return request;
}

TEST(ModelRequestsTest, ConversionNeedsATargetThatCanBeMade) {
  for (const Format target : {Format::kInt8, Format::kTernary, Format::kNf4, Format::kBF16})
    EXPECT_TRUE(CheckTarget(To(target)).ok()) << Name(target);
  for (const Format target : {Format::kF32, Format::kLora}) EXPECT_EQ(FieldOf(CheckTarget(To(target))), "target");
  ConvertRequest unset = To(Format::kInt8);
  unset.target.reset();
  EXPECT_EQ(FieldOf(CheckTarget(unset)), "target");
}

TEST(ModelRequestsTest, OnlyInt8TakesHeadActivationsAndOutliers) {
  ConvertRequest request = To(Format::kInt8);
  request.act_outliers = 0;
  request.head = Format::kBF16;
  request.activations = Format::kInt8;
  EXPECT_TRUE(CheckTarget(request).ok());
  request.target = Format::kNf4;
  EXPECT_EQ(FieldOf(CheckTarget(request)), "head");
  request.head.reset();
  EXPECT_EQ(FieldOf(CheckTarget(request)), "activations");
  request.activations.reset();
  EXPECT_EQ(FieldOf(CheckTarget(request)), "act_outliers");
}

TEST(ModelRequestsTest, ConversionRefusesValuesOutOfRange) {
  const auto field = [](const std::function<void(ConvertRequest&)>& edit) {
    ConvertRequest request = To(Format::kInt8);
    edit(request);
    return FieldOf(CheckQuality(request));
  };
  EXPECT_EQ(field([](auto& r) { r.act_outliers = kernels::kMaxOutliers; }), "");
  EXPECT_EQ(field([](auto& r) { r.act_outliers = kernels::kMaxOutliers + 1; }), "act_outliers");
  EXPECT_EQ(field([](auto& r) { r.act_outliers = -1; }), "act_outliers");
  EXPECT_EQ(field([](auto& r) { r.head = Format::kInt8; }), "");
  EXPECT_EQ(field([](auto& r) { r.head = Format::kF32; }), "head");
  EXPECT_EQ(field([](auto& r) { r.activations = Format::kInt8; }), "");
  EXPECT_EQ(field([](auto& r) { r.activations = Format::kBF16; }), "");
  EXPECT_EQ(field([](auto& r) { r.activations = Format::kF32; }), "activations");
  EXPECT_EQ(field([](auto& r) { r.activations = Format::kBF16, r.act_outliers = 0; }), "");
  EXPECT_EQ(field([](auto& r) { r.activations = Format::kBF16, r.act_outliers = 1; }), "act_outliers");
  EXPECT_EQ(field([](auto& r) { r.tolerance.max_eval_loss_delta = -1; }), "");
  EXPECT_EQ(field([](auto& r) { r.tolerance.max_eval_loss_delta = INFINITY; }), "tolerance.max_eval_loss_delta");
  EXPECT_EQ(field([](auto& r) { r.tolerance.min_top1_agreement = 1; }), "");
  EXPECT_EQ(field([](auto& r) { r.tolerance.min_top1_agreement = 1.5; }), "tolerance.min_top1_agreement");
  EXPECT_EQ(field([](auto& r) { r.tolerance.min_top1_agreement = NAN; }), "tolerance.min_top1_agreement");
}

TEST(ModelRequestsTest, ExportRefusesMissingFormatAndInvalidShardSize) {
  ExportRequest request;
  EXPECT_EQ(FieldOf(CheckFormat(request)), "format");
  request.format = ExportFormat::kHf;
  EXPECT_TRUE(CheckFormat(request).ok());
  request.max_shard_bytes = 1;
  EXPECT_TRUE(CheckFormat(request).ok());
  request.max_shard_bytes = 0;
  EXPECT_EQ(FieldOf(CheckFormat(request)), "max_shard_bytes");
  request.max_shard_bytes = 1;
  request.format = ExportFormat::kPeft;
  EXPECT_EQ(FieldOf(CheckFormat(request)), "max_shard_bytes");
}

}  // namespace
}  // namespace nibble::registry
