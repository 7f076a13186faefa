// Facts about a stored model, read from its small files.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/json.h"
#include "server/data/row.h"
#include "server/model/artifact.h"
#include "server/model/model_config.h"
#include "server/registry/conversion_report.h"
#include "server/store/model_store.h"

namespace nibble::registry {

struct ModelFacts {
  model::ArtifactInfo info;
  model::ModelConfig config;
  std::int64_t parameters = 0;  // of an adapter: its own
  std::string base_model;       // of an adapter: the name of its base; "" for other models
  std::string source;           // what the model was made from: a checkpoint, job, model or path; "" if unknown
  std::string tokenizer_digest;
  bool has_chat_template = false;
  std::optional<data::RowFormat> trained_format;  // of the data of its job
  std::optional<model::Format> head_format;       // unset if the weights cannot be read
  std::optional<std::int64_t> record_rows;        // unset without a record
  std::optional<ConversionReport> conversion;     // unset without a report; an empty one if it cannot be parsed
};

// Reads config.json, record.bin, the conversion's report and other small files, and at most the header of the weights.
// Errors: DataLoss, InvalidArgument: nibble.json, config.json or adapter_config.json is damaged; errors of reading a
// file.
absl::StatusOr<ModelFacts> FactsOf(const store::StoredModel& stored);

// object[key], where `object` is a model's provenance or a part of it; "" if absent or not a text.
std::string ProvenanceText(const base::Json& object, const char* key);

}  // namespace nibble::registry
