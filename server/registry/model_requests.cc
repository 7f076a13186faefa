#include "server/registry/model_requests.h"

#include <cmath>
#include <set>

#include "kernels/formats/int8.h"
#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"

namespace nibble::registry {

using base::FieldError;
using base::StrCat;

namespace {

absl::Status CheckBounds(const ConversionTolerance& tolerance) {
  if (tolerance.max_eval_loss_delta.has_value() && !std::isfinite(*tolerance.max_eval_loss_delta)) {
    return FieldError("tolerance.max_eval_loss_delta",
                      StrCat("is ", *tolerance.max_eval_loss_delta, ", wanted a finite number"));
  }
  // The comparison also refuses NaN.
  if (tolerance.min_top1_agreement.has_value() &&
      !(*tolerance.min_top1_agreement >= 0 && *tolerance.min_top1_agreement <= 1)) {
    return FieldError("tolerance.min_top1_agreement", StrCat("is ", *tolerance.min_top1_agreement, ", wanted 0 to 1"));
  }
  return absl::OkStatus();
}

absl::Status CheckBlock(const char* field, const std::optional<std::int64_t>& block) {
  const std::string problem = block.has_value() ? model::BlockProblem(*block) : "";
  return problem.empty() ? absl::OkStatus() : FieldError(field, problem);
}

}  // namespace

absl::Status CheckRandomInit(const RandomInitRequest& request) {
  constexpr std::size_t kMaxSpecialTokens = 64, kMaxSpecialTokenBytes = 256;
  if (request.seed < 0) return FieldError("random_init.seed", StrCat("is ", request.seed, ", wanted at least 0"));
  const std::vector<std::string>& tokens = request.special_tokens;
  const auto refuse = [](std::string_view what) { return FieldError("random_init.special_tokens", what); };
  if (!tokens.empty() && !request.tokenizer_dataset.has_value()) {
    return refuse("is set, but tokenizer_dataset is not: the tokens of a given tokenizer.json cannot be changed");
  }
  if (tokens.size() > kMaxSpecialTokens) {
    return refuse(StrCat("has ", tokens.size(), " tokens, wanted at most ", kMaxSpecialTokens));
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].empty() || tokens[i].size() > kMaxSpecialTokenBytes || !base::IsValidUtf8(tokens[i])) {
      return refuse(
          StrCat("token ", i, " has ", tokens[i].size(), " bytes, wanted 1 to ", kMaxSpecialTokenBytes, " in UTF-8"));
    }
  }
  if (std::set(tokens.begin(), tokens.end()).size() < tokens.size()) return refuse("has a token twice");
  return absl::OkStatus();
}

absl::Status CheckTarget(const ConvertRequest& request) {
  const bool to_int8 = request.target == model::Format::kInt8;
  if (request.adapter_init.has_value()) {
    const std::string& adapter = request.adapter_init->name;
    NIBBLE_RETURN_IF_ERROR(base::CheckName("adapter_init.name", adapter));
    if (adapter == request.name) {
      return FieldError("adapter_init.name",
                        StrCat("is \"", adapter, "\" like the base, wanted another name for the adapter"));
    }
    if (request.target != model::Format::kNf4 && request.target != model::Format::kBF16 &&
        request.target != model::Format::kF32) {
      return FieldError("target", "wanted NF4, BF16 or F32 with adapter_init");
    }
  } else if (!to_int8 && request.target != model::Format::kNf4 && request.target != model::Format::kTernary &&
             request.target != model::Format::kBF16) {
    return FieldError("target", "wanted INT8, TERNARY, NF4 or BF16");
  }
  if (request.target != model::Format::kNf4) {
    if (request.nf4_block.has_value()) return FieldError("nf4_block", "applies only to NF4");
    if (request.double_quant.has_value()) return FieldError("double_quant", "applies only to NF4");
    if (request.scaler_block.has_value()) return FieldError("scaler_block", "applies only to NF4");
  }
  if (to_int8) return absl::OkStatus();
  if (request.head.has_value()) return FieldError("head", "applies only to INT8");
  if (request.activations.has_value()) return FieldError("activations", "applies only to INT8");
  if (request.act_outliers.has_value()) return FieldError("act_outliers", "applies only to INT8");
  return absl::OkStatus();
}

absl::Status CheckQuality(const ConvertRequest& request) {
  NIBBLE_RETURN_IF_ERROR(CheckBounds(request.tolerance));
  if (request.act_outliers.has_value() &&
      (*request.act_outliers < 0 || *request.act_outliers > kernels::kMaxOutliers)) {
    return FieldError("act_outliers", StrCat("is ", *request.act_outliers, ", wanted 0 to ", kernels::kMaxOutliers));
  }
  if (request.head.has_value() && request.head != model::Format::kInt8 && request.head != model::Format::kBF16) {
    return FieldError("head", "wanted INT8 or BF16");
  }
  if (request.activations.has_value() && request.activations != model::Format::kInt8 &&
      request.activations != model::Format::kBF16) {
    return FieldError("activations", "wanted INT8 or BF16");
  }
  NIBBLE_RETURN_IF_ERROR(CheckBlock("nf4_block", request.nf4_block));
  NIBBLE_RETURN_IF_ERROR(CheckBlock("scaler_block", request.scaler_block));
  if (request.scaler_block.has_value() && !request.double_quant.value_or(true)) {
    return FieldError("scaler_block", "is set, wanted unset with double_quant false, which leaves the scales in f32");
  }
  if (request.activations == model::Format::kBF16 && request.act_outliers.value_or(0) != 0) {
    return FieldError("act_outliers", StrCat("is ", *request.act_outliers, ", wanted 0 with activations BF16"));
  }
  return absl::OkStatus();
}

absl::Status CheckFormat(const ExportRequest& request) {
  if (!request.format.has_value()) return FieldError("format", "wanted PEFT, HF, HF_BITNET or COMPRESSED_TENSORS");
  if (!request.max_shard_bytes.has_value()) return absl::OkStatus();
  if (request.format == ExportFormat::kPeft) {
    return FieldError("max_shard_bytes", "is for HF, HF_BITNET and COMPRESSED_TENSORS");
  }
  if (*request.max_shard_bytes < 1) {
    return FieldError("max_shard_bytes", StrCat("is ", *request.max_shard_bytes, ", wanted 1 or more"));
  }
  return absl::OkStatus();
}

}  // namespace nibble::registry
