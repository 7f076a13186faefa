#include "server/rpc/model_proto.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>

#include <limits>
#include <string>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/registry/conversion_report.h"
#include "server/rpc/model_requests.h"

namespace nibble::rpc {
namespace {

// Every field is set.
registry::ConversionReport FullReport() {
  registry::ConversionReport report;
  report.source_format = model::Format::kLora;
  report.target_format = model::Format::kInt8;
  report.source_digest = std::string(64, 'a');
  report.target_digest = std::string(64, 'b');
  report.adapter = "tuned-start";
  report.layers = {{.name = "model.layers.0.self_attn.q_proj.weight",
                    .rms_error = 0.1,
                    .relative_error = 1.0 / 3,
                    .max_abs_error = 1e-7},
                   {.name = "lm_head.weight", .rms_error = 2, .relative_error = 1e300, .max_abs_error = 5e-324}};
  report.eval_loss_before = 2.7182818284590452;
  report.eval_loss_after = 3;
  report.top1_agreement = 0.9375;
  report.eval_tokens = std::numeric_limits<std::int64_t>::max();
  return report;
}

base::Json JsonOfMessage(const registry::ConversionReport& report) {
  std::string json;
  EXPECT_TRUE(google::protobuf::util::MessageToJsonString(ToProto(report, /*detailed=*/true), &json).ok());
  return base::ParseJson(json).value();
}

void ExpectEveryFieldSet(const google::protobuf::Message& message) {
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const auto* field = message.GetDescriptor()->field(i);
    const bool set = field->is_repeated() ? message.GetReflection()->FieldSize(message, field) > 0
                                          : message.GetReflection()->HasField(message, field);
    EXPECT_TRUE(set) << field->full_name();
  }
}

TEST(ModelProtoTest, ConversionFileHasTheFieldsOfTheMessage) {
  const registry::ConversionReport report = FullReport();
  const v1::ConversionReport message = ToProto(report, /*detailed=*/true);
  ExpectEveryFieldSet(message);
  ExpectEveryFieldSet(message.layers(0));
  const base::Json expected = JsonOfMessage(report);
  const base::Json written = base::ParseJson(registry::ToJson(report)).value();
  EXPECT_EQ(written.size(), expected.size());
  for (const auto& [key, value] : expected.items()) {
    ASSERT_TRUE(written.contains(key)) << key;
    EXPECT_TRUE(written[key] == value) << key << ": " << base::Dump(written[key]) << ", wanted " << base::Dump(value);
  }
}

TEST(ModelProtoTest, ConversionFileOmitsTheFieldsThatTheMessageOmits) {
  registry::ConversionReport report;
  EXPECT_TRUE(JsonOfMessage(report) == base::ParseJson(registry::ToJson(report)).value());
  // Optional fields are written although they are 0; NaN and the infinities are strings.
  report.layers = {{.name = "", .rms_error = 0, .relative_error = 0, .max_abs_error = 0}};
  report.eval_loss_before = 0;
  report.eval_loss_after = std::numeric_limits<double>::quiet_NaN();
  report.top1_agreement = -std::numeric_limits<double>::infinity();
  const base::Json expected = JsonOfMessage(report);
  const base::Json written = base::ParseJson(registry::ToJson(report)).value();
  EXPECT_TRUE(written == expected) << base::Dump(written) << ", wanted " << base::Dump(expected);
}

TEST(ModelProtoTest, ParsesTheJsonOfTheMessage) {
  for (const registry::ConversionReport& report : {FullReport(), registry::ConversionReport()}) {
    std::string json;
    const v1::ConversionReport message = ToProto(report, /*detailed=*/true);
    ASSERT_TRUE(google::protobuf::util::MessageToJsonString(message, &json).ok());
    const auto parsed = registry::ParseConversionReport(json);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(ToProto(*parsed, /*detailed=*/true).SerializeAsString(), message.SerializeAsString());
    // Earlier versions read the file with protobuf's parser.
    v1::ConversionReport read;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(registry::ToJson(report), &read).ok());
    EXPECT_EQ(read.SerializeAsString(), message.SerializeAsString());
  }
}

TEST(ModelProtoTest, EveryFormatHasTheNameOfTheMessage) {
  for (const model::Format format : {model::Format::kF32, model::Format::kBF16, model::Format::kNf4,
                                     model::Format::kInt8, model::Format::kTernary, model::Format::kLora}) {
    registry::ConversionReport report;
    report.source_format = format;
    EXPECT_TRUE(JsonOfMessage(report) == base::ParseJson(registry::ToJson(report)).value()) << Name(format);
    EXPECT_EQ(registry::ParseConversionReport(registry::ToJson(report))->source_format, format);
  }
}

std::string FieldOf(const absl::Status& status) { return base::ReasonMetadata(status)["field"]; }

v1::ConvertModelRequest ConversionToInt8() {
  v1::ConvertModelRequest request;
  request.set_model("m");
  request.set_name("n");
  request.set_target(v1::MODEL_FORMAT_INT8);
  return request;
}

// Each request gets its wrong fields in the reverse order of the checks, so that the newest one is named.
TEST(ModelProtoTest, NumbersThatTheApiDoesNotDefineAreRefused) {
  v1::ConvertModelRequest convert = ConversionToInt8();
  EXPECT_TRUE(CheckFields(convert).ok());
  convert.set_head(static_cast<v1::ModelFormat>(99));
  EXPECT_EQ(FieldOf(CheckFields(convert)), "head");
  convert.set_lora(static_cast<v1::LoraHandling>(99));
  EXPECT_EQ(FieldOf(CheckFields(convert)), "lora");
  convert.set_target(static_cast<v1::ModelFormat>(99));
  EXPECT_EQ(FieldOf(CheckFields(convert)), "target");

  v1::ExportModelRequest exported;
  exported.set_model("m");
  exported.set_format(v1::EXPORT_FORMAT_HF);
  EXPECT_TRUE(CheckFields(exported).ok());
  exported.set_linear_class(static_cast<v1::HfLinearClass>(99));
  EXPECT_EQ(FieldOf(CheckFields(exported)), "linear_class");
  exported.set_format(static_cast<v1::ExportFormat>(99));
  EXPECT_EQ(FieldOf(CheckFields(exported)), "format");

  v1::ImportModelRequest imported;
  EXPECT_FALSE(FromProto(imported).dtype.has_value());
  imported.set_dtype(static_cast<v1::ModelFormat>(99));
  EXPECT_EQ(FromProto(imported).dtype, model::Format::kLora) << "registry refuses it";
}

TEST(ModelProtoTest, UnimplementedFieldsAreNamed) {
  const auto name_of = [](const auto& request) { return base::ReasonMetadata(CheckFields(request))["name"]; };
  v1::ConvertModelRequest keep = ConversionToInt8();
  keep.set_lora(v1::LORA_HANDLING_KEEP);
  EXPECT_EQ(name_of(keep), "ConvertModelRequest.lora LORA_HANDLING_KEEP");
  keep.set_calibration_dataset("d");
  EXPECT_EQ(name_of(keep), "ConvertModelRequest.calibration_dataset");
  keep.set_checkpoint("job-1/3");
  EXPECT_EQ(name_of(keep), "ConvertModelRequest.checkpoint");
  v1::ExportModelRequest gguf;
  gguf.set_format(v1::EXPORT_FORMAT_GGUF);
  EXPECT_EQ(name_of(gguf), "ExportModelRequest.format EXPORT_FORMAT_GGUF");
}

}  // namespace
}  // namespace nibble::rpc
