#include "server/model/import.h"

#include <algorithm>
#include <cstring>

#include "kernels/formats/ternary.h"
#include "server/base/error.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/artifact_writer.h"
#include "server/model/file_names.h"
#include "server/model/safetensors.h"
#include "server/model/stored_tensors.h"
#include "server/model/weight_source.h"
#include "server/text/tokenizer.h"

namespace nibble::model {
namespace {

using base::StrCat;
using kernels::DType;

// `source` is a directory with config.json, a GGUF file, or a directory with one GGUF file and no config.json.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenSource(base::FileSystem& files, const std::string& source) {
  if (!files.Exists(source)) return absl::NotFoundError(StrCat(source, " does not exist"));
  const auto names = files.List(source);
  if (!names.ok()) return OpenGgufModel(source);  // not a directory
  if (files.Exists(base::JoinPath(source, kConfigFile))) return OpenHfDirectory(files, source);
  std::string gguf;
  for (const std::string& name : *names) {
    if (!name.ends_with(".gguf")) continue;
    if (!gguf.empty()) return absl::InvalidArgumentError("more than one .gguf file, and no config.json");
    gguf = name;
  }
  if (gguf.empty()) return absl::NotFoundError("no config.json and no .gguf file");
  return OpenGgufModel(base::JoinPath(source, gguf));
}

// An exponent field of all ones means infinity or NaN, in f32 and in bf16.
absl::Status CheckFinite(const TensorSpec& spec, const std::string& bytes, DType dtype) {
  const std::size_t width = static_cast<std::size_t>(kernels::SizeOf(dtype));
  for (std::size_t i = 0; i < bytes.size() / width; ++i) {
    std::uint16_t upper = 0;  // sign, exponent and first bits of the mantissa are the upper half
    std::memcpy(&upper, bytes.data() + i * width + (width - 2), 2);
    if ((upper & 0x7f80u) == 0x7f80u) {
      return absl::InvalidArgumentError(StrCat("tensor \"", spec.name, "\" is not finite at element ", i));
    }
  }
  return absl::OkStatus();
}

// Only moves existing codes into the packed layout.
absl::Status PutTernary(const WeightSource& source, const TensorSpec& spec, SafetensorsWriter& writer) {
  NIBBLE_ASSIGN_OR_RETURN(const TernaryValues values, source.ReadTernary(spec));
  std::string rows(static_cast<std::size_t>(spec.shape[0] * kernels::TernaryRowBytes(spec.shape[1])), '\0');
  if (!kernels::TernaryCodesToRows(values.codes.data(), spec.shape[0], spec.shape[1],
                                   reinterpret_cast<std::uint8_t*>(rows.data()))) {
    return absl::InternalError(StrCat(spec.name, ": holds a code other than -1, 0 and 1"));
  }
  NIBBLE_RETURN_IF_ERROR(writer.Put(spec.name, rows));
  return writer.Put(spec.name + kTernaryScaleSuffix,
                    {reinterpret_cast<const char*>(&values.scale), sizeof values.scale});
}

absl::Status CheckTokenizer(const WeightSource& source, std::uint64_t max_bytes) {
  const std::string& json = source.files().at(kTokenizerFile);
  if (json.size() > max_bytes) {
    return base::WithReason(
        absl::ResourceExhaustedError(StrCat("tokenizer.json has ", json.size(), " bytes, the limit is ", max_bytes)),
        "UPLOAD_TOO_LARGE", {{"max_bytes", std::to_string(max_bytes)}});
  }
  const auto tokenizer = text::Tokenizer::FromJson(json);
  if (!tokenizer.ok()) {
    return absl::InvalidArgumentError(StrCat("tokenizer.json: ", base::ToStd(tokenizer.status().message())));
  }
  const std::int64_t vocab = source.config().vocab_size;
  const auto wanted_below = [vocab](const std::string& what, std::int32_t id) {
    return absl::InvalidArgumentError(
        StrCat("tokenizer.json: ", what, " ", id, ", wanted below ", vocab, ", the size of the model's vocabulary"));
  };
  const std::vector<std::int32_t> ids = (*tokenizer)->ids();
  if (!ids.empty() && ids.back() >= vocab) return wanted_below("the largest token id is", ids.back());
  // A post-processor names the ids that it adds around a text; they need not be in the vocabulary.
  const auto around = (*tokenizer)->Encode("", /*add_special_tokens=*/true);
  if (!around.ok()) {
    // Encode's message begins with "text: ", so this one begins with "tokenizer.json: an empty text: ".
    return absl::InvalidArgumentError(StrCat("tokenizer.json: an empty ", base::ToStd(around.status().message())));
  }
  for (const std::int32_t id : *around) {
    if (id >= vocab) return wanted_below("the post-processor adds token id", id);
  }
  return absl::OkStatus();
}

// The import's peak memory, in bytes: tensors are read, checked and written one by one, and the source keeps its
// companion files until the end.
std::int64_t HeldBytes(const WeightSource& source, const std::vector<TensorSpec>& specs, const ArtifactInfo& info,
                       const std::map<std::string, DType>& types) {
  std::int64_t largest = 0;
  for (const TensorSpec& spec : specs) {
    largest = std::max(largest, source.ReadBytes(spec, types.at(spec.name)));
    if (!IsQuantized(spec, source.config(), info)) continue;
    // PutTernary holds the codes and their packed rows.
    largest = std::max(largest,
                       NumElements(spec.shape).value_or(0) + spec.shape[0] * kernels::TernaryRowBytes(spec.shape[1]));
  }
  std::int64_t held = largest;
  for (const auto& [name, bytes] : source.files()) held += static_cast<std::int64_t>(bytes.size());
  return held;
}

}  // namespace

absl::StatusOr<ImportReport> ImportModel(base::FileSystem& files, const std::string& source, const std::string& target,
                                         DType dtype, const ImportOptions& options) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    return base::FieldError("dtype", StrCat(kernels::Name(dtype), ", wanted f32 or bf16"));
  }
  NIBBLE_ASSIGN_OR_RETURN(
      const std::unique_ptr<WeightSource> weights,
      options.random.has_value() ? MakeRandomModel(files, source, *options.random) : OpenSource(files, source));
  NIBBLE_RETURN_IF_ERROR(CheckTokenizer(*weights, options.max_tokenizer_bytes));
  ImportReport report;
  report.config = weights->config();
  report.ignored_tensors = weights->ignored_tensors();
  ArtifactInfo info;
  info.format = weights->is_ternary() ? Format::kTernary : dtype == DType::kF32 ? Format::kF32 : Format::kBF16;
  if (weights->is_bitnet()) {  // transformers' BitNet always has 8-bit activations
    info.bitnet = BitNetInfo{.act_bits = 8, .head_dtype = dtype, .float_linears = weights->float_linears()};
  }
  info.kv_dtype = dtype;
  NIBBLE_ASSIGN_OR_RETURN(const auto stored, StoredTensors(report.config, info));
  std::map<std::string, DType> types;
  std::vector<TensorPlan> plan;
  for (const StoredTensor& tensor : stored) {
    types[tensor.name] = tensor.dtypes.size() == 1 ? tensor.dtypes[0] : dtype;  // the only allowed type, or `dtype`
    plan.push_back({tensor.name, types[tensor.name], tensor.shape});
  }
  std::vector<TensorSpec> specs = RequiredTensors(report.config);
  if (options.admit) NIBBLE_RETURN_IF_ERROR(options.admit(HeldBytes(*weights, specs, info, types)));
  NIBBLE_ASSIGN_OR_RETURN(const auto writer, ArtifactWriter::Create(files, target, std::move(plan)));
  SortForWriter(writer->tensors(), specs);
  for (const TensorSpec& spec : specs) {
    report.num_parameters += NumElements(spec.shape).value_or(0);
    if (IsQuantized(spec, report.config, info)) {
      NIBBLE_RETURN_IF_ERROR(PutTernary(*weights, spec, writer->tensors()));
      continue;
    }
    const DType type = types.at(spec.name);
    NIBBLE_ASSIGN_OR_RETURN(const std::string bytes, weights->Read(spec, type));
    NIBBLE_RETURN_IF_ERROR(CheckFinite(spec, bytes, type));
    NIBBLE_RETURN_IF_ERROR(writer->tensors().Put(spec.name, bytes));
  }
  for (const auto& [name, bytes] : weights->files()) NIBBLE_RETURN_IF_ERROR(writer->PutFile(name, bytes));
  info.source = "import";
  info.provenance = options.provenance;
  info.provenance["imported_from"] = weights->kind();
  NIBBLE_ASSIGN_OR_RETURN(report.info, writer->Finish(report.config, std::move(info)));
  return report;
}

}  // namespace nibble::model
