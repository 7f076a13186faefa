#include "server/model/artifact.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/formats/int8.h"
#include "server/base/error.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/file_names.h"
#include "server/model/float_convert.h"
#include "server/model/safetensors.h"
#include "server/model/saved_modules.h"
#include "server/model/stored_tensors.h"

namespace nibble::model {
namespace {

using base::Json;
using base::StrCat;
using kernels::DType;

constexpr std::uint64_t kMaxInfoBytes = 4 << 20;
constexpr std::uint64_t kMaxAdapterConfigBytes = 1 << 20;
constexpr std::uint64_t kMaxSmallFileBytes = 64 << 20;
constexpr std::size_t kPieceBytes = 1 << 20;  // hashed between two checks for cancellation
constexpr int kLayoutVersion = 1;
// Version of a weight-only model: a program that knows only version 1 would serve it as another model.
constexpr int kWeightOnlyVersion = 2;
// Version of a BitNet model with transformers' scales or with float linears, for the same reason.
constexpr int kBitNetOptionsVersion = 3;
// Version of an nf4 model with other options than the default, and of an adapter on one, for the same reason.
constexpr int kNf4OptionsVersion = 4;
constexpr char kNf4Key[] = "nf4";
constexpr char kScalesKey[] = "scales";
constexpr char kHfScales[] = "hf";
constexpr char kFloatLinearsKey[] = "float_linears";
constexpr char kBaseFormatKey[] = "base_format";
constexpr char kActivationsKey[] = "activations";
constexpr Format kFormats[] = {Format::kF32,  Format::kBF16,    Format::kNf4,
                               Format::kInt8, Format::kTernary, Format::kLora};

absl::Status Corrupt(std::string_view what) {
  return base::WithReason(absl::DataLossError(std::string(what)), "CORRUPT_ARTIFACT");
}

absl::StatusOr<Json> ReadJson(const std::string& directory, const char* name, std::uint64_t max_bytes) {
  auto text = base::RealFileSystem().Read(base::JoinPath(directory, name), max_bytes);
  if (!text.ok()) {
    if (absl::IsNotFound(text.status())) return Corrupt(StrCat("the artifact has no ", name));
    return std::move(text).status();
  }
  auto json = base::ParseJson(*text);
  if (!json.ok()) return Corrupt(StrCat(name, ": ", base::ToStd(json.status().message())));
  return json;
}

absl::StatusOr<DType> GetFloatType(const Json& json, const char* key) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string name, base::GetString(json, key, kInfoFile));
  if (name == "bf16") return DType::kBF16;
  if (name == "f32") return DType::kF32;
  return absl::InvalidArgumentError(
      StrCat(kInfoFile, ": \"", key, "\" is \"", name.substr(0, 32), "\", wanted bf16 or f32"));
}

absl::StatusOr<int> GetOutliers(const Json& json, const char* key) {
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t outliers, base::GetInt(json, key, kInfoFile));
  if (outliers < 0 || outliers > kernels::kMaxOutliers) {
    return absl::InvalidArgumentError(
        StrCat(kInfoFile, ": \"", key, "\" is ", outliers, ", wanted 0 to ", kernels::kMaxOutliers));
  }
  return static_cast<int>(outliers);
}

absl::StatusOr<Format> GetBaseFormat(const Json& json, Format format) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string name, base::GetString(json, kBaseFormatKey, kInfoFile));
  for (const Format base : {Format::kNf4, Format::kBF16, Format::kF32, Format::kInt8}) {
    if (format == Format::kLora && name == Name(base)) return base;
  }
  return absl::InvalidArgumentError(StrCat(kInfoFile, ": \"", kBaseFormatKey, "\" is \"", name.substr(0, 32),
                                           "\" in a model in ", Name(format),
                                           ", wanted nf4, bf16, f32 or int8 in lora"));
}

// Only weight-only models have the key.
absl::StatusOr<bool> GetWeightOnly(const Json& json, std::int64_t version, const ArtifactInfo& info) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string name, base::GetString(json, kActivationsKey, kInfoFile, ""));
  if (name.empty() && version != kWeightOnlyVersion) return false;
  if (name != "bf16" || version != kWeightOnlyVersion || info.weight_format() != Format::kInt8) {
    return absl::InvalidArgumentError(StrCat(kInfoFile, ": \"", kActivationsKey, "\" is \"", name.substr(0, 32),
                                             "\" in a model in ", Name(info.format), ", version ", version,
                                             ", wanted bf16 in int8, version ", kWeightOnlyVersion));
  }
  if (info.act_outliers != 0) {
    return absl::InvalidArgumentError(
        StrCat(kInfoFile, ": \"act_outliers\" is ", info.act_outliers, ", wanted 0 with bf16 activations"));
  }
  return true;
}

bool HasNf4Options(const ArtifactInfo& info) {
  return info.weight_format() == Format::kNf4 && info.nf4 != Nf4Options();
}

// Only nf4 models with other options than the default have the key.
absl::StatusOr<Nf4Options> GetNf4Options(const Json& json, std::int64_t version, const ArtifactInfo& info) {
  const auto options = json.find(kNf4Key);
  const bool found = options != json.end();
  if (found != (version == kNf4OptionsVersion) || (found && info.weight_format() != Format::kNf4)) {
    return absl::InvalidArgumentError(StrCat(kInfoFile, ": ", found ? "" : "no ", "\"", kNf4Key, "\" in a model in ",
                                             Name(info.weight_format()), ", version ", version,
                                             ", wanted one in nf4, version ", kNf4OptionsVersion));
  }
  return found ? ParseNf4Options(*options, kInfoFile) : Nf4Options();
}

bool HasOptions(const BitNetInfo& bitnet) {
  return bitnet.scaling != kernels::RowScaling::kNative || !bitnet.float_linears.empty();
}

// Reads the list of float linears, which must be ascending and without duplicates, as ToJson writes it.
absl::StatusOr<std::vector<LinearKind>> GetFloatLinears(const Json& json) {
  std::vector<LinearKind> linears;
  const auto list = json.find(kFloatLinearsKey);
  if (list == json.end()) return linears;
  if (!list->is_array() || list->empty()) {
    return absl::InvalidArgumentError(StrCat(kInfoFile, ": \"", kFloatLinearsKey, "\" is not a list of linears"));
  }
  for (const Json& name : *list) {
    const auto linear = name.is_string() ? LinearNamed(name.get<std::string>()) : std::nullopt;
    if (!linear.has_value() || (!linears.empty() && *linear <= linears.back())) {
      return absl::InvalidArgumentError(StrCat(kInfoFile, ": \"", kFloatLinearsKey, "\" has ",
                                               base::Dump(name).substr(0, 32),
                                               ", wanted some of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
                                               "down_proj in this order"));
    }
    linears.push_back(*linear);
  }
  return linears;
}

Json ToJson(const BitNetInfo& bitnet) {
  Json json = {{"act_bits", bitnet.act_bits}, {"head_dtype", kernels::Name(bitnet.head_dtype)}};
  if (bitnet.scaling == kernels::RowScaling::kReciprocal) json[kScalesKey] = kHfScales;
  for (const LinearKind linear : bitnet.float_linears) json[kFloatLinearsKey].push_back(ShortName(linear));
  return json;
}

// A BitNet model with options must have kBitNetOptionsVersion, and no other model may have it.
absl::Status CheckVersion(const std::optional<BitNetInfo>& bitnet, std::int64_t version) {
  const bool has_options = bitnet.has_value() && HasOptions(*bitnet);
  if (has_options == (version == kBitNetOptionsVersion)) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(kInfoFile, ": version ", version, has_options ? " with" : " without", " \"",
                                           kScalesKey, "\" or \"", kFloatLinearsKey,
                                           "\" in \"bitnet\", wanted version ", kBitNetOptionsVersion,
                                           has_options ? "" : " only with them"));
}

absl::StatusOr<BitNetInfo> ParseBitNetInfo(const Json& json) {
  BitNetInfo bitnet;
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t bits, base::GetInt(json, "act_bits", kInfoFile));
  if (bits != 4 && bits != 8 && bits != 16) {
    return absl::InvalidArgumentError(StrCat(kInfoFile, ": \"act_bits\" is ", bits, ", wanted 4, 8 or 16"));
  }
  bitnet.act_bits = static_cast<int>(bits);
  NIBBLE_ASSIGN_OR_RETURN(bitnet.head_dtype, GetFloatType(json, "head_dtype"));
  if (json.contains(kScalesKey)) {
    if (json[kScalesKey] != kHfScales) {
      return absl::InvalidArgumentError(StrCat(kInfoFile, ": \"", kScalesKey, "\" is ",
                                               base::Dump(json[kScalesKey]).substr(0, 32), ", wanted \"", kHfScales,
                                               "\""));
    }
    bitnet.scaling = kernels::RowScaling::kReciprocal;
  }
  NIBBLE_ASSIGN_OR_RETURN(bitnet.float_linears, GetFloatLinears(json));
  return bitnet;
}

std::string DTypeList(const std::vector<DType>& dtypes) {
  std::string text;
  for (const DType dtype : dtypes) text += StrCat(text.empty() ? "" : " or ", kernels::Name(dtype));
  return text;
}

// The stored tensors must be exactly the wanted ones.
absl::Status CheckTensors(const std::vector<StoredTensor>& wanted, const char* file,
                          std::map<std::string, SafetensorsTensor>& found, std::map<std::string, TensorView>& out) {
  for (const StoredTensor& want : wanted) {
    const auto it = found.find(want.name);
    if (it == found.end()) return absl::InvalidArgumentError(StrCat(file, ": no tensor \"", want.name, "\""));
    const SafetensorsTensor& got = it->second;
    bool fits = false;
    for (const DType dtype : want.dtypes) fits = fits || got.dtype == dtype;
    if (!fits || got.shape != want.shape) {
      return absl::InvalidArgumentError(StrCat(file, ": tensor \"", want.name, "\" is ", got.dtype_name, " ",
                                               ShapeText(got.shape), ", wanted ", DTypeList(want.dtypes), " ",
                                               ShapeText(want.shape)));
    }
    if (reinterpret_cast<std::uintptr_t>(got.bytes.data()) % static_cast<std::uintptr_t>(kernels::SizeOf(*got.dtype)) !=
        0) {
      return Corrupt(StrCat(file, ": tensor \"", want.name, "\" is not aligned to its element size"));
    }
    out.emplace(want.name, TensorView{*got.dtype, got.shape, got.bytes});
    found.erase(it);
  }
  if (!found.empty())
    return absl::InvalidArgumentError(StrCat(file, ": unknown tensor \"", found.begin()->first, "\""));
  return absl::OkStatus();
}

}  // namespace

const char* Name(Format format) {
  switch (format) {
    case Format::kF32: return "f32";
    case Format::kBF16: return "bf16";
    case Format::kNf4: return "nf4";
    case Format::kInt8: return "int8";
    case Format::kTernary: return "ternary";
    case Format::kLora: return "lora";
  }
  return "unknown";
}

absl::StatusOr<Format> ParseFormat(std::string_view text) {
  for (const Format format : kFormats) {
    if (text == Name(format)) return format;
  }
  return absl::InvalidArgumentError(
      StrCat("format \"", text.substr(0, 32), "\", wanted f32, bf16, nf4, int8, ternary or lora"));
}

bool BitNetInfo::StaysFloat(LinearKind kind) const {
  return std::find(float_linears.begin(), float_linears.end(), kind) != float_linears.end();
}

Determinism ArtifactInfo::determinism() const {
  const Format weights = weight_format();
  return weights == Format::kInt8 || weights == Format::kTernary ? Determinism::kBitwise : Determinism::kBestEffort;
}

std::string SourceName(const ArtifactInfo& info) {
  return base::GetString(info.provenance, kSourceName, kInfoFile, "").value_or("");
}

Json ToJson(const ArtifactInfo& info) {
  Json json = Json::object();
  json["version"] = info.weight_only                                      ? kWeightOnlyVersion
                    : info.bitnet.has_value() && HasOptions(*info.bitnet) ? kBitNetOptionsVersion
                    : HasNf4Options(info)                                 ? kNf4OptionsVersion
                                                                          : kLayoutVersion;
  json["format"] = Name(info.format);
  // Absent for nf4, as in the files of versions that knew no other base.
  if (info.format == Format::kLora && info.base_format != Format::kNf4) json[kBaseFormatKey] = Name(info.base_format);
  if (HasNf4Options(info)) json[kNf4Key] = ToJson(info.nf4);
  json["act_outliers"] = info.act_outliers;
  if (info.weight_only) json[kActivationsKey] = "bf16";
  json["kv_dtype"] = kernels::Name(info.kv_dtype);
  json["int8_head"] = info.int8_head;
  if (info.bitnet.has_value()) json["bitnet"] = ToJson(*info.bitnet);
  if (info.trained_outliers.has_value()) json["trained_outliers"] = *info.trained_outliers;
  json["weights_digest"] = info.weights_digest;
  json["base_digest"] = info.base_digest;
  json["source"] = info.source;
  json["recorded_by"] = info.recorded_by;
  json["provenance"] = info.provenance;
  json["checksum"] = base::Sha256Hex(base::Dump(json));
  return json;
}

absl::StatusOr<ArtifactInfo> ParseArtifactInfo(const Json& json) {
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t version, base::GetInt(json, "version", kInfoFile));
  if (version < kLayoutVersion || version > kNf4OptionsVersion) {
    return absl::UnimplementedError(
        StrCat(kInfoFile, ": version ", version, ", this program reads ", kLayoutVersion, " to ", kNf4OptionsVersion));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string checksum, base::GetString(json, "checksum", kInfoFile));
  Json rest = json;
  rest.erase("checksum");
  if (base::Sha256Hex(base::Dump(rest)) != checksum) return Corrupt(StrCat(kInfoFile, ": checksum does not match"));
  ArtifactInfo info;
  NIBBLE_ASSIGN_OR_RETURN(const std::string format, base::GetString(json, "format", kInfoFile));
  NIBBLE_ASSIGN_OR_RETURN(info.format, ParseFormat(format));
  if (json.contains(kBaseFormatKey)) {
    NIBBLE_ASSIGN_OR_RETURN(info.base_format, GetBaseFormat(json, info.format));
  }
  NIBBLE_ASSIGN_OR_RETURN(info.nf4, GetNf4Options(json, version, info));
  NIBBLE_ASSIGN_OR_RETURN(info.act_outliers, GetOutliers(json, "act_outliers"));
  NIBBLE_ASSIGN_OR_RETURN(info.weight_only, GetWeightOnly(json, version, info));
  if (json.contains("trained_outliers")) {
    NIBBLE_ASSIGN_OR_RETURN(info.trained_outliers, GetOutliers(json, "trained_outliers"));
  }
  NIBBLE_ASSIGN_OR_RETURN(info.kv_dtype, GetFloatType(json, "kv_dtype"));
  NIBBLE_ASSIGN_OR_RETURN(info.int8_head, base::GetBool(json, "int8_head", kInfoFile));
  if (const auto bitnet = json.find("bitnet"); bitnet != json.end()) {
    NIBBLE_ASSIGN_OR_RETURN(info.bitnet, ParseBitNetInfo(*bitnet));
  }
  NIBBLE_RETURN_IF_ERROR(CheckVersion(info.bitnet, version));
  if (info.format == Format::kTernary && !info.bitnet.has_value()) {
    return absl::InvalidArgumentError(StrCat(kInfoFile, ": format ternary without \"bitnet\""));
  }
  NIBBLE_ASSIGN_OR_RETURN(info.weights_digest, base::GetString(json, "weights_digest", kInfoFile));
  NIBBLE_ASSIGN_OR_RETURN(info.base_digest, base::GetString(json, "base_digest", kInfoFile));
  NIBBLE_ASSIGN_OR_RETURN(info.source, base::GetString(json, "source", kInfoFile));
  NIBBLE_ASSIGN_OR_RETURN(info.recorded_by, base::GetString(json, "recorded_by", kInfoFile));
  const auto provenance = json.find("provenance");
  if (provenance == json.end() || !provenance->is_object()) {
    return absl::InvalidArgumentError(StrCat(kInfoFile, ": no \"provenance\", wanted an object"));
  }
  info.provenance = *provenance;
  return info;
}

absl::Status WriteArtifactInfo(base::FileSystem& files, const std::string& directory, const ArtifactInfo& info) {
  return base::WriteFileAtomically(files, base::JoinPath(directory, kInfoFile), base::Dump(ToJson(info), 2) + "\n");
}

absl::StatusOr<std::unique_ptr<Artifact>> Artifact::Open(const std::string& directory) {
  std::unique_ptr<Artifact> artifact(new Artifact());
  artifact->directory_ = directory;
  NIBBLE_ASSIGN_OR_RETURN(const Json info, ReadJson(directory, kInfoFile, kMaxInfoBytes));
  NIBBLE_ASSIGN_OR_RETURN(artifact->info_, ParseArtifactInfo(info));
  NIBBLE_ASSIGN_OR_RETURN(const Json config, ReadJson(directory, kConfigFile, kMaxConfigJsonBytes));
  NIBBLE_ASSIGN_OR_RETURN(artifact->config_, ParseHfConfig(config));
  if (!base::RealFileSystem().Exists(base::JoinPath(directory, kTokenizerFile))) {
    return Corrupt("the artifact has no tokenizer.json");
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto wanted, StoredTensors(artifact->config_, artifact->info_));
  NIBBLE_ASSIGN_OR_RETURN(SafetensorsFiles stored, OpenSafetensors(base::JoinPath(directory, kWeightsFile)));
  NIBBLE_RETURN_IF_ERROR(CheckTensors(wanted, kWeightsFile, stored.tensors, artifact->tensors_));
  artifact->files_ = std::move(stored.files);
  if (artifact->info_.format == Format::kLora) {
    NIBBLE_ASSIGN_OR_RETURN(const Json peft, ReadJson(directory, kAdapterConfigFile, kMaxAdapterConfigBytes));
    NIBBLE_ASSIGN_OR_RETURN(artifact->adapter_, ParsePeftConfig(peft));
    const std::string problem = SavedModulesProblem(artifact->config_, *artifact->adapter_, artifact->info_.int8_head);
    if (!problem.empty()) return Corrupt(StrCat(kAdapterConfigFile, ": \"modules_to_save\" ", problem));
    std::vector<StoredTensor> adapter;
    for (TensorPlan& plan : AdapterTensors(artifact->config_, *artifact->adapter_)) {
      adapter.push_back({std::move(plan.name), {plan.dtype}, std::move(plan.shape)});
    }
    NIBBLE_ASSIGN_OR_RETURN(stored, OpenSafetensors(base::JoinPath(directory, kAdapterWeightsFile)));
    NIBBLE_RETURN_IF_ERROR(CheckTensors(adapter, kAdapterWeightsFile, stored.tensors, artifact->tensors_));
    for (auto& file : stored.files) artifact->files_.push_back(std::move(file));
  }
  return artifact;
}

absl::StatusOr<TensorView> Artifact::Tensor(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return absl::NotFoundError(StrCat("no tensor \"", name, "\""));
  return it->second;
}

std::string Artifact::InUse(const std::string& name) const {
  std::string copy = SavedName(name);
  return tensors_.contains(copy) ? copy : name;
}

absl::StatusOr<std::vector<float>> Artifact::FloatTensor(const std::string& name) const {
  NIBBLE_ASSIGN_OR_RETURN(const TensorView view, Tensor(name));
  auto values = ToFloats(view.bytes, view.dtype, NumElements(view.shape).value_or(-1));
  if (!values.ok()) return absl::InvalidArgumentError(StrCat(name, ": ", base::ToStd(values.status().message())));
  return values;
}

absl::Status Artifact::VerifyBytes(const base::Cancelled& cancelled) const {
  std::vector<TensorDigest> digests;
  for (const auto& [name, view] : tensors_) {
    base::Sha256 sha;
    for (std::size_t at = 0; at < view.bytes.size(); at += kPieceBytes) {
      NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
      const auto piece = view.bytes.subspan(at, std::min(kPieceBytes, view.bytes.size() - at));
      sha.Update(piece.data(), piece.size());
    }
    digests.push_back({name, view.dtype, view.shape, sha.HexDigest()});
  }
  const std::string digest = WeightsDigest(std::move(digests));
  if (digest != info_.weights_digest) {
    return Corrupt(StrCat("the tensors have digest ", digest, ", ", kInfoFile, " says ", info_.weights_digest));
  }
  const auto files = info_.provenance.find("files");
  if (files == info_.provenance.end()) return absl::OkStatus();
  for (const auto& [name, wanted] : files->items()) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string bytes,
                            base::RealFileSystem().Read(base::JoinPath(directory_, name), kMaxSmallFileBytes));
    if (wanted != base::Sha256Hex(bytes)) return Corrupt(StrCat(name, ": digest differs from the one in ", kInfoFile));
  }
  return absl::OkStatus();
}

}  // namespace nibble::model
