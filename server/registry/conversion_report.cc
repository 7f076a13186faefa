#include "server/registry/conversion_report.h"

#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::registry {

using base::StrCat;

namespace {

constexpr char kFormatPrefix[] = "MODEL_FORMAT_";  // of the API's enumeration

// JSON has no number for NaN and the infinities, so the JSON of protobuf spells them as strings.
base::Json NumberOf(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

void AddFormat(base::Json& json, const char* key, const std::optional<model::Format>& format) {
  if (format.has_value()) json[key] = StrCat(kFormatPrefix, absl::AsciiStrToUpper(Name(*format)));
}

void AddText(base::Json& json, const char* key, const std::string& text) {
  if (!text.empty()) json[key] = text;
}

void AddNumber(base::Json& json, const char* key, double value) {
  if (value != 0) json[key] = NumberOf(value);
}

void AddNumber(base::Json& json, const char* key, const std::optional<double>& value) {
  if (value.has_value()) json[key] = NumberOf(*value);
}

// The functions below read a key that may be absent or null.
bool Has(const base::Json& json, const char* key) { return json.contains(key) && !json[key].is_null(); }

absl::Status ReadFormat(const base::Json& json, const char* key, std::optional<model::Format>& format) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string name, base::GetString(json, key, kConversionFile, ""));
  if (!name.starts_with(kFormatPrefix)) return absl::OkStatus();
  const auto found = model::ParseFormat(absl::AsciiStrToLower(name.substr(sizeof kFormatPrefix - 1)));
  if (found.ok()) format = *found;
  return absl::OkStatus();
}

absl::Status ReadNumber(const base::Json& json, const char* key, double& value) {
  if (!Has(json, key)) return absl::OkStatus();
  // Also reads the strings that NumberOf writes.
  if (json[key].is_string() && absl::SimpleAtod(json[key].get<std::string>(), &value)) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(value, base::GetNumber(json, key, kConversionFile));
  return absl::OkStatus();
}

absl::Status ReadNumber(const base::Json& json, const char* key, std::optional<double>& value) {
  if (!Has(json, key)) return absl::OkStatus();
  return ReadNumber(json, key, value.emplace());
}

absl::Status ReadInt(const base::Json& json, const char* key, std::int64_t& value) {
  if (!Has(json, key)) return absl::OkStatus();
  if (json[key].is_string() && absl::SimpleAtoi(json[key].get<std::string>(), &value)) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(value, base::GetInt(json, key, kConversionFile));
  return absl::OkStatus();
}

absl::StatusOr<convert::LayerError> ParseLayer(const base::Json& json) {
  convert::LayerError layer;
  NIBBLE_ASSIGN_OR_RETURN(layer.name, base::GetString(json, "layer", kConversionFile, ""));
  NIBBLE_RETURN_IF_ERROR(ReadNumber(json, "rmsError", layer.rms_error));
  NIBBLE_RETURN_IF_ERROR(ReadNumber(json, "relativeError", layer.relative_error));
  NIBBLE_RETURN_IF_ERROR(ReadNumber(json, "maxAbsError", layer.max_abs_error));
  return layer;
}

absl::Status Malformed(const char* what) { return absl::InvalidArgumentError(StrCat(kConversionFile, ": ", what)); }

}  // namespace

std::string ToJson(const ConversionReport& report) {
  base::Json json = base::Json::object();
  AddFormat(json, "sourceFormat", report.source_format);
  AddFormat(json, "targetFormat", report.target_format);
  AddText(json, "sourceDigest", report.source_digest);
  AddText(json, "targetDigest", report.target_digest);
  for (const convert::LayerError& layer : report.layers) {
    base::Json one = base::Json::object();
    AddText(one, "layer", layer.name);
    AddNumber(one, "rmsError", layer.rms_error);
    AddNumber(one, "relativeError", layer.relative_error);
    AddNumber(one, "maxAbsError", layer.max_abs_error);
    json["layers"].push_back(std::move(one));
  }
  AddNumber(json, "evalLossBefore", report.eval_loss_before);
  AddNumber(json, "evalLossAfter", report.eval_loss_after);
  AddNumber(json, "top1Agreement", report.top1_agreement);
  AddText(json, "adapter", report.adapter);
  if (report.eval_tokens != 0) json["evalTokens"] = std::to_string(report.eval_tokens);
  return base::Dump(json);
}

absl::StatusOr<ConversionReport> ParseConversionReport(std::string_view text) {
  NIBBLE_ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(text));
  if (!json.is_object()) return Malformed("is not an object");
  ConversionReport report;
  NIBBLE_RETURN_IF_ERROR(ReadFormat(json, "sourceFormat", report.source_format));
  NIBBLE_RETURN_IF_ERROR(ReadFormat(json, "targetFormat", report.target_format));
  NIBBLE_ASSIGN_OR_RETURN(report.source_digest, base::GetString(json, "sourceDigest", kConversionFile, ""));
  NIBBLE_ASSIGN_OR_RETURN(report.target_digest, base::GetString(json, "targetDigest", kConversionFile, ""));
  NIBBLE_ASSIGN_OR_RETURN(report.adapter, base::GetString(json, "adapter", kConversionFile, ""));
  if (Has(json, "layers")) {
    if (!json["layers"].is_array()) return Malformed("layers is not an array");
    for (const base::Json& one : json["layers"]) {
      if (!one.is_object()) return Malformed("layers holds a value that is not an object");
      NIBBLE_ASSIGN_OR_RETURN(convert::LayerError layer, ParseLayer(one));
      report.layers.push_back(std::move(layer));
    }
  }
  NIBBLE_RETURN_IF_ERROR(ReadNumber(json, "evalLossBefore", report.eval_loss_before));
  NIBBLE_RETURN_IF_ERROR(ReadNumber(json, "evalLossAfter", report.eval_loss_after));
  NIBBLE_RETURN_IF_ERROR(ReadNumber(json, "top1Agreement", report.top1_agreement));
  NIBBLE_RETURN_IF_ERROR(ReadInt(json, "evalTokens", report.eval_tokens));
  return report;
}

absl::Status CheckTolerance(const ConversionTolerance& tolerance, const ConversionReport& report) {
  std::string why;
  if (tolerance.max_eval_loss_delta.has_value()) {
    const double delta = report.eval_loss_after.value_or(0) - report.eval_loss_before.value_or(0);
    if (!(delta <= *tolerance.max_eval_loss_delta)) {
      why = StrCat("the evaluation loss rose by ", delta, ", allowed ", *tolerance.max_eval_loss_delta);
    }
  }
  if (why.empty() && tolerance.min_top1_agreement.has_value() &&
      !(report.top1_agreement.value_or(0) >= *tolerance.min_top1_agreement)) {
    why = StrCat("the share of positions with the same top token is ", report.top1_agreement.value_or(0),
                 ", wanted at least ", *tolerance.min_top1_agreement);
  }
  if (why.empty()) return absl::OkStatus();
  return base::WithReason(absl::FailedPreconditionError(why), "CONVERSION_TOLERANCE");
}

}  // namespace nibble::registry
