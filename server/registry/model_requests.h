// The requests of work on whole models, and the checks of their fields that need no model. Errors name the fields as
// the API does.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/convert/adapter_init.h"
#include "server/convert/export.h"
#include "server/model/artifact.h"

namespace nibble::registry {

struct RandomInitRequest {
  std::int64_t seed = 0;
  std::optional<std::string> tokenizer_dataset;  // unset: the files contain tokenizer.json
  std::vector<std::string> special_tokens;       // of a trained tokenizer; empty: kEndOfText alone
};
inline constexpr char kEndOfText[] = "<|endoftext|>";

struct ImportRequest {
  std::string name;  // of the new model
  // The source of the files; exactly one is set.
  std::optional<std::string> upload_id;
  std::optional<std::string> server_path;  // below the import root
  std::optional<model::Format> dtype;      // kF32 or kBF16; unset: kBF16
  // Set if the files are an adapter as saved by PEFT: its base model.
  std::optional<std::string> base_model;
  std::optional<std::string> source_name;        // where other programs find the model
  std::optional<RandomInitRequest> random_init;  // set if the files have no weights
};

// Limits on the loss of quality. Unset: no limit.
struct ConversionTolerance {
  std::optional<double> max_eval_loss_delta;  // nats per token
  std::optional<double> min_top1_agreement;   // share of positions with the same top token, [0, 1]

  bool is_set() const { return max_eval_loss_delta.has_value() || min_top1_agreement.has_value(); }
};

struct AdapterInitRequest {
  std::string name;  // of the adapter
  convert::AdapterInit init;
};

struct ConvertRequest {
  std::string model;
  std::string name;                     // of the new model
  std::optional<model::Format> target;  // kInt8, kTernary, kNf4 or kBF16, with adapter_init also kF32; required
  // head, act_outliers and activations: only for an int8 target.
  std::optional<model::Format> head;         // kInt8 or kBF16; unset: as the source's job trained it, otherwise kInt8
  std::optional<std::int32_t> act_outliers;  // per activation row
  std::optional<model::Format> activations;  // kInt8 or kBF16; unset: as the source's job trained it, else kInt8
  // Only for an nf4 target. Unset: the defaults of model::Nf4Options.
  std::optional<std::int64_t> nf4_block;
  std::optional<bool> double_quant;
  std::optional<std::int64_t> scaler_block;
  std::optional<AdapterInitRequest> adapter_init;  // makes an adapter too, on the new model
  bool merge = false;                              // requires that the model is an adapter
  ConversionTolerance tolerance;
  std::optional<std::string> eval_dataset;  // unset: the evaluation data of the job that made the model, if any
};

enum class ExportFormat { kPeft, kHf, kHfBitNet, kCompressedTensors };

struct ExportRequest {
  std::string model;
  std::optional<ExportFormat> format;                  // required
  std::optional<convert::HfBitNetClass> linear_class;  // of a ternary model; unset: kBitLinear
  std::optional<std::int64_t> max_shard_bytes;         // unset: convert::kDefaultShardBytes
};

struct PublishRequest {
  std::string checkpoint;
  std::string name;  // of the new model
};

// Errors: InvalidArgument (FIELD_VIOLATION).
absl::Status CheckRandomInit(const RandomInitRequest& request);
// The target, the adapter's name, and the fields that only an int8 or an nf4 target has. Errors: InvalidArgument
// (FIELD_VIOLATION).
absl::Status CheckTarget(const ConvertRequest& request);
// The tolerance and the values of the fields that only some targets have. Errors: as CheckTarget.
absl::Status CheckQuality(const ConvertRequest& request);
// The format and max_shard_bytes. Errors: as CheckTarget.
absl::Status CheckFormat(const ExportRequest& request);

}  // namespace nibble::registry
