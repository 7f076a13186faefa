#include "server/registry/conversion_report.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::registry {
namespace {

using testing::HasSubstr;

TEST(ConversionReportTest, WritesOnlyFieldsWithAValue) {
  EXPECT_EQ(ToJson({}), "{}");
  ConversionReport report;
  report.source_format = model::Format::kBF16;
  report.target_format = model::Format::kInt8;
  report.layers = {{.name = "a", .rms_error = 0.5}};
  report.eval_loss_before = 0;
  report.eval_tokens = 12;
  EXPECT_EQ(ToJson(report), R"({"sourceFormat":"MODEL_FORMAT_BF16","targetFormat":"MODEL_FORMAT_INT8",)"
                            R"("layers":[{"layer":"a","rmsError":0.5}],"evalLossBefore":0.0,"evalTokens":"12"})");
}

// Earlier versions wrote these files with protobuf's JSON printer.
TEST(ConversionReportTest, ParsesFilesOfEarlierVersions) {
  const auto report = ParseConversionReport(
      R"({"sourceFormat":"MODEL_FORMAT_LORA","targetFormat":"MODEL_FORMAT_NF4","sourceDigest":"s","targetDigest":"t",)"
      R"("layers":[{"layer":"a","rmsError":1e-05,"relativeError":1,"maxAbsError":0.25},{"layer":"b"}],)"
      R"("evalLossBefore":2,"evalLossAfter":"NaN","top1Agreement":0.5,"evalTokens":"9007199254740993"})");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->source_format, model::Format::kLora);
  EXPECT_EQ(report->target_format, model::Format::kNf4);
  EXPECT_EQ(report->source_digest, "s");
  EXPECT_EQ(report->target_digest, "t");
  ASSERT_EQ(report->layers.size(), 2u);
  EXPECT_EQ(report->layers[0].name, "a");
  EXPECT_EQ(report->layers[0].rms_error, 1e-5);
  EXPECT_EQ(report->layers[0].relative_error, 1);
  EXPECT_EQ(report->layers[0].max_abs_error, 0.25);
  EXPECT_EQ(report->layers[1].name, "b");
  EXPECT_EQ(report->layers[1].rms_error, 0);
  EXPECT_EQ(report->eval_loss_before, 2);
  EXPECT_TRUE(std::isnan(report->eval_loss_after.value()));
  EXPECT_EQ(report->top1_agreement, 0.5);
  EXPECT_EQ(report->eval_tokens, 9007199254740993);
}

TEST(ConversionReportTest, ParsesItsOwnFile) {
  ConversionReport report;
  report.source_format = model::Format::kF32;
  report.target_format = model::Format::kTernary;
  report.layers = {{.name = "\"\n", .rms_error = 0.1, .relative_error = 1.0 / 3, .max_abs_error = 1e-300}};
  report.eval_loss_before = std::numeric_limits<double>::infinity();
  report.eval_loss_after = -std::numeric_limits<double>::infinity();
  report.top1_agreement = 0;
  report.eval_tokens = std::numeric_limits<std::int64_t>::max();
  const auto again = ParseConversionReport(ToJson(report));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ToJson(*again), ToJson(report));
  EXPECT_EQ(again->eval_loss_before, report.eval_loss_before);
  EXPECT_EQ(again->layers[0].relative_error, 1.0 / 3);
}

TEST(ConversionReportTest, TakesNumbersAndStringsAndIgnoresUnknownKeys) {
  const auto report = ParseConversionReport(
      R"({"evalTokens":7,"evalLossAfter":"1.5","top1Agreement":null,"sourceFormat":"MODEL_FORMAT_OF_LATER","new":{}})");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->eval_tokens, 7);
  EXPECT_EQ(report->eval_loss_after, 1.5);
  EXPECT_FALSE(report->top1_agreement.has_value());
  EXPECT_FALSE(report->source_format.has_value());
}

TEST(ConversionReportTest, RejectsMalformedFiles) {
  for (const char* text : {"", "[]", "{", R"({"layers":{}})", R"({"layers":[1]})", R"({"evalTokens":"x"})",
                           R"({"evalLossAfter":[]})", R"({"sourceDigest":1})", R"({"layers":[{"layer":1}]})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseConversionReport(text).status())) << text;
  }
}

TEST(ConversionReportTest, ToleranceRefusesGreaterLossesAndNaN) {
  ConversionReport report;
  report.eval_loss_before = 2;
  report.eval_loss_after = 2.5;
  report.top1_agreement = 0.75;
  EXPECT_TRUE(CheckTolerance({}, report).ok());
  EXPECT_TRUE(CheckTolerance({.max_eval_loss_delta = 0.5, .min_top1_agreement = 0.75}, report).ok());
  const absl::Status loss = CheckTolerance({.max_eval_loss_delta = 0.25, .min_top1_agreement = std::nullopt}, report);
  EXPECT_TRUE(absl::IsFailedPrecondition(loss)) << loss;
  EXPECT_EQ(base::Reason(loss), "CONVERSION_TOLERANCE");
  EXPECT_THAT(std::string(loss.message()), HasSubstr("rose by 0.5, allowed 0.25"));
  const absl::Status top1 = CheckTolerance({.max_eval_loss_delta = std::nullopt, .min_top1_agreement = 1}, report);
  EXPECT_EQ(base::Reason(top1), "CONVERSION_TOLERANCE");
  EXPECT_THAT(std::string(top1.message()), HasSubstr("is 0.75, wanted at least 1"));
  report.eval_loss_after = std::nan("");
  EXPECT_FALSE(CheckTolerance({.max_eval_loss_delta = 100, .min_top1_agreement = std::nullopt}, report).ok());
}

}  // namespace
}  // namespace nibble::registry
