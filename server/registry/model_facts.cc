#include "server/registry/model_facts.h"

#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/model/adapter.h"
#include "server/model/file_names.h"
#include "server/model/record.h"
#include "server/model/safetensors.h"
#include "server/model/tensor_table.h"

namespace nibble::registry {

namespace {

constexpr std::uint64_t kMaxSmallFile = 4u << 20;
constexpr std::uint64_t kMaxReport = 64u << 20;

absl::StatusOr<base::Json> ReadJson(const store::StoredModel& stored, const char* file) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text,
                          base::RealFileSystem().Read(base::JoinPath(stored.directory, file), kMaxSmallFile));
  return base::ParseJson(text);
}

absl::StatusOr<std::int64_t> ParametersOf(const store::StoredModel& stored, model::Format format,
                                          const model::ModelConfig& config) {
  std::int64_t parameters = 0;
  const auto count = [&](const auto& tensors) {
    for (const auto& tensor : tensors) parameters += model::NumElements(tensor.shape).value_or(0);
  };
  if (format == model::Format::kLora) {
    NIBBLE_ASSIGN_OR_RETURN(const base::Json json, ReadJson(stored, model::kAdapterConfigFile));
    NIBBLE_ASSIGN_OR_RETURN(const model::AdapterConfig adapter, model::ParsePeftConfig(json));
    count(model::AdapterTensors(config, adapter));
  } else {
    count(model::RequiredTensors(config));
  }
  return parameters;
}

std::string SourceOf(const model::ArtifactInfo& info) {
  std::string source;
  if (info.source == "checkpoint") source = ProvenanceText(info.provenance, "checkpoint");
  for (const char* key : {"source", "job_id", "source_model", "imported_from"}) {
    if (source.empty()) source = ProvenanceText(info.provenance, key);
  }
  return source;
}

std::string TokenizerDigestOf(const model::ArtifactInfo& info) {
  const auto files = info.provenance.find("files");
  if (files == info.provenance.end() || !files->is_object()) return "";
  return ProvenanceText(*files, model::kTokenizerFile);
}

bool HasChatTemplate(const store::StoredModel& stored) {
  base::FileSystem& files = base::RealFileSystem();
  if (files.Exists(base::JoinPath(stored.directory, model::kChatTemplateFile))) return true;
  const auto config = files.Read(base::JoinPath(stored.directory, model::kTokenizerConfigFile), kMaxSmallFile);
  return config.ok() && config->find("\"chat_template\"") != std::string::npos;
}

std::optional<data::RowFormat> TrainedFormatOf(const model::ArtifactInfo& info) {
  const auto data = info.provenance.find("eval_data");
  if (data == info.provenance.end() || !data->is_object()) return std::nullopt;
  const auto format = data::ParseRowFormat(ProvenanceText(*data, "trained_format"));
  return format.ok() ? std::optional(*format) : std::nullopt;
}

std::optional<model::Format> HeadFormatOf(const store::StoredModel& stored, const model::ArtifactInfo& info,
                                          bool tied) {
  const auto format_of = [](kernels::DType dtype) {
    return dtype == kernels::DType::kF32 ? model::Format::kF32 : model::Format::kBF16;
  };
  switch (info.format) {
    case model::Format::kF32: return model::Format::kF32;
    case model::Format::kBF16: return model::Format::kBF16;
    case model::Format::kInt8: return info.int8_head ? model::Format::kInt8 : model::Format::kBF16;
    case model::Format::kTernary: return format_of(info.bitnet.value_or(model::BitNetInfo()).head_dtype);
    case model::Format::kNf4: break;
    case model::Format::kLora:
      if (info.int8_head) return model::Format::kInt8;
      break;
  }
  // The head keeps the type that it has in the source model. Only the header of the weights file records this type.
  const auto weights = model::OpenSafetensors(base::JoinPath(stored.directory, model::kWeightsFile));
  if (!weights.ok()) return std::nullopt;
  const auto head = weights->tensors.find(tied ? model::kEmbeddingName : model::kHeadName);
  if (head == weights->tensors.end() || !head->second.dtype.has_value()) return std::nullopt;
  return format_of(*head->second.dtype);
}

std::optional<ConversionReport> ConversionOf(const store::StoredModel& stored) {
  const auto report = base::RealFileSystem().Read(base::JoinPath(stored.directory, kConversionFile), kMaxReport);
  if (!report.ok()) return std::nullopt;
  return ParseConversionReport(*report).value_or(ConversionReport());
}

}  // namespace

std::string ProvenanceText(const base::Json& object, const char* key) {
  return base::GetString(object, key, "", "").value_or("");
}

absl::StatusOr<ModelFacts> FactsOf(const store::StoredModel& stored) {
  ModelFacts facts;
  NIBBLE_ASSIGN_OR_RETURN(facts.info, model::ParseArtifactInfo(stored.info));
  NIBBLE_ASSIGN_OR_RETURN(const base::Json config, ReadJson(stored, model::kConfigFile));
  NIBBLE_ASSIGN_OR_RETURN(facts.config, model::ParseHfConfig(config));
  NIBBLE_ASSIGN_OR_RETURN(facts.parameters, ParametersOf(stored, facts.info.format, facts.config));
  if (facts.info.format == model::Format::kLora) facts.base_model = ProvenanceText(facts.info.provenance, "base_model");
  facts.source = SourceOf(facts.info);
  facts.tokenizer_digest = TokenizerDigestOf(facts.info);
  facts.has_chat_template = HasChatTemplate(stored);
  facts.trained_format = TrainedFormatOf(facts.info);
  facts.head_format = HeadFormatOf(stored, facts.info, facts.config.tied_embeddings);
  if (const auto record = model::ReadRecord(base::RealFileSystem(), stored.directory); record.ok())
    facts.record_rows = record->num_rows();
  facts.conversion = ConversionOf(stored);
  return facts;
}

}  // namespace nibble::registry
