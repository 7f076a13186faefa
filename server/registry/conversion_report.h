// The report of a conversion, and its file in the converted model.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/convert/convert.h"
#include "server/model/artifact.h"
#include "server/registry/model_requests.h"

namespace nibble::registry {

inline constexpr char kConversionFile[] = "conversion.json";

struct ConversionReport {
  std::optional<model::Format> source_format;  // unset only in a file that does not name it
  std::optional<model::Format> target_format;
  std::string source_digest;  // of the weights; for an adapter, over base and adapter
  std::string target_digest;
  std::string adapter;                      // name of the adapter that the conversion also made; "": none
  std::vector<convert::LayerError> layers;  // every tensor that is quantized or gets an adapter
  // Losses in nats per token. Unset without evaluation data. If the source holds masters of a BitNet model,
  // eval_loss_before and top1_agreement are always unset.
  std::optional<double> eval_loss_before;
  std::optional<double> eval_loss_after;
  std::optional<double> top1_agreement;  // share of positions with the same top token
  std::int64_t eval_tokens = 0;
};

// The JSON of the API's message ConversionReport: camelCase keys, without fields that have their default value.
std::string ToJson(const ConversionReport& report);
// Ignores unknown keys and unknown formats. Errors: InvalidArgument.
absl::StatusOr<ConversionReport> ParseConversionReport(std::string_view json);

// Errors: FailedPrecondition (CONVERSION_TOLERANCE).
absl::Status CheckTolerance(const ConversionTolerance& tolerance, const ConversionReport& report);

}  // namespace nibble::registry
