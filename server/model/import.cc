#include "server/model/import.h"

#include <cstring>

#include "server/base/error.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/artifact_writer.h"
#include "server/model/safetensors.h"
#include "server/model/weight_source.h"
#include "server/text/tokenizer.h"

namespace nibble::model {
namespace {

using base::StrCat;
using kernels::DType;

// A GGUF file, or a directory with one and no config.json.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenSource(base::FileSystem& files, const std::string& source) {
  if (!files.Exists(source)) return absl::NotFoundError(StrCat(source, " is not there"));
  const auto names = files.List(source);
  if (!names.ok()) return OpenGgufModel(source);  // no directory
  if (files.Exists(base::JoinPath(source, "config.json"))) return OpenHfDirectory(files, source);
  std::string gguf;
  for (const std::string& name : *names) {
    if (!name.ends_with(".gguf")) continue;
    if (!gguf.empty()) return absl::InvalidArgumentError("more than one .gguf file, and no config.json");
    gguf = name;
  }
  if (gguf.empty()) return absl::NotFoundError("neither config.json nor a .gguf file is there");
  return OpenGgufModel(base::JoinPath(source, gguf));
}

// The exponent field of all ones says infinity or NaN, in f32 and in bf16.
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

absl::Status CheckTokenizer(const WeightSource& source) {
  const auto tokenizer = text::Tokenizer::FromJson(source.files().at("tokenizer.json"));
  if (!tokenizer.ok()) {
    return absl::InvalidArgumentError(StrCat("tokenizer.json: ", base::ToStd(tokenizer.status().message())));
  }
  const auto size = static_cast<std::int64_t>((*tokenizer)->vocab_size());
  if (size > source.config().vocab_size) {
    return absl::InvalidArgumentError(
        StrCat("tokenizer.json has ", size, " tokens, the model's vocabulary has ", source.config().vocab_size));
  }
  for (const text::AddedToken& token : (*tokenizer)->added_tokens()) {
    if (token.id >= source.config().vocab_size) {
      return absl::InvalidArgumentError(StrCat("tokenizer.json has an added token of id ", token.id,
                                               ", the model's vocabulary has ", source.config().vocab_size));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ImportReport> ImportModel(base::FileSystem& files, const std::string& source, const std::string& target,
                                         DType dtype) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    return base::FieldError("dtype", StrCat(kernels::Name(dtype), ", wanted f32 or bf16"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> weights, OpenSource(files, source));
  NIBBLE_RETURN_IF_ERROR(CheckTokenizer(*weights));
  ImportReport report;
  report.config = weights->config();
  report.ignored_tensors = weights->ignored_tensors();
  const std::vector<TensorSpec> specs = RequiredTensors(report.config);
  std::vector<TensorPlan> plan;
  for (const TensorSpec& spec : specs) plan.push_back({spec.name, dtype, spec.shape});
  NIBBLE_ASSIGN_OR_RETURN(const auto writer, ArtifactWriter::Create(files, target, std::move(plan)));
  for (const TensorSpec& spec : specs) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string bytes, weights->Read(spec, dtype));
    NIBBLE_RETURN_IF_ERROR(CheckFinite(spec, bytes, dtype));
    NIBBLE_RETURN_IF_ERROR(writer->tensors().Put(spec.name, bytes));
    report.num_parameters += NumElements(spec.shape).value_or(0);
  }
  for (const auto& [name, bytes] : weights->files()) NIBBLE_RETURN_IF_ERROR(writer->PutFile(name, bytes));
  ArtifactInfo info;
  info.format = dtype == DType::kF32 ? Format::kF32 : Format::kBF16;
  info.kv_dtype = dtype;
  info.source = "import";
  info.provenance["imported_from"] = weights->kind();
  NIBBLE_ASSIGN_OR_RETURN(report.info, writer->Finish(report.config, std::move(info)));
  return report;
}

}  // namespace nibble::model
