// A model on disk in Nibble's own format: one directory.
//   nibble.json              format, act_outliers, activations, kv dtype, provenance (ArtifactInfo)
//   config.json              ToHfConfig
//   tokenizer.json, tokenizer_config.json, generation_config.json where the source had one
//   model.safetensors        tensors (docs/formats.md):
//     f32, bf16   NAME
//     int8        NAME i8 [N, K] and NAME_scale f32 [N] (linears, head, embedding when tied); norms and biases f32; an
//                 embedding that is not int8 keeps its source's type, a head that is not int8 is bf16
//     nf4         NAME u8 [N, ceil(K/2)] and, with the default Nf4Options, NAME_absmax i8 [N, ceil(K/64)],
//                 NAME_absmax_factor f32 and NAME_absmax_offset f32 [1] (double quantized); norms and biases f32;
//                 embedding and head keep their source's type
//     ternary     NAME u8 [N, ceil(K/4)] and NAME_scale f32 [1] (linears; kernels/formats/ternary.h, rows); norms and
//                 biases f32; embedding, head and linears that stay float (NAME) f32 or bf16
//     lora        adapter_model.safetensors and adapter_config.json as PEFT writes them, beside the tensors of the
//                 base in the base's format: nf4, bf16, f32 or int8
//   record.bin               optional: digests of logits, which `models verify` computes again (docs/numerics.md 10)
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "kernels/formats/int8.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/model/adapter.h"
#include "server/model/model_config.h"
#include "server/model/nf4_options.h"
#include "server/model/tensor_table.h"

namespace nibble::model {

enum class Format { kF32, kBF16, kNf4, kInt8, kTernary, kLora };
const char* Name(Format format);  // "f32", ..., "lora" (a base and one adapter)
absl::StatusOr<Format> ParseFormat(std::string_view text);

enum class Determinism { kBitwise, kBestEffort };  // kBitwise: weights in int8 or ternary

// A BitNet model's settings besides its architecture. A ternary artifact is served with them. In a float artifact they
// mark the linears as master weights, which must be ternarized before use: they are trained and converted, never
// served.
struct BitNetInfo {
  int act_bits = 8;  // bits of activation codes: 4, 8 or 16; one scale per row
  // Head, embedding and linears that stay float are rounded to it, in training too.
  kernels::DType head_dtype = kernels::DType::kBF16;
  // How the scales of activation rows are made. With kReciprocal, the scale of a weight is its ReciprocalScale
  // (kernels/formats/ternary.h).
  kernels::RowScaling scaling = kernels::RowScaling::kNative;
  std::vector<LinearKind> float_linears = {};  // stay float, in every layer; ascending

  bool StaysFloat(LinearKind kind) const;
};

struct ArtifactInfo {
  Format format = Format::kF32;
  Format base_format = Format::kNf4;  // lora: of the base, kNf4, kBF16, kF32 or kInt8
  Nf4Options nf4;                     // nf4, and lora on nf4
  int act_outliers = 0;               // int8, and lora on int8: maximum outliers per activation row
  // int8, and lora on int8: linears multiply bf16 rows instead of codes; no outliers.
  bool weight_only = false;
  kernels::DType kv_dtype = kernels::DType::kBF16;  // K and V are rounded to it before any use
  bool int8_head = false;                           // int8, lora on int8: head (and tied embedding) are int8 too
  std::optional<BitNetInfo> bitnet;                 // always set for ternary; on f32 and bf16: BitNet masters
  std::optional<int> trained_outliers;  // f32, bf16: trained in int8 with this maximum of outliers per activation row
  std::string weights_digest;           // SHA-256 over the tensors: name, dtype, shape, bytes; by name
  std::string base_digest;              // for lora, and for a model made from another
  std::string source;                   // "import", "convert", "job", "checkpoint"
  std::string recorded_by;              // maker of record.bin: "trainer", "convert", or ""
  base::Json provenance = base::Json::object();  // job id, dataset digest, tokenizer digest, config digest, ...

  Determinism determinism() const;
  // The format of the tensors in model.safetensors: that of the base for lora.
  Format weight_format() const { return format == Format::kLora ? base_format : format; }
  bool is_masters() const { return bitnet.has_value() && format != Format::kTernary; }
};

// provenance[kSourceName]: ImportModelRequest.source_name.
inline constexpr char kSourceName[] = "source_name";
// Where other programs find an imported model, or the model that a quantized one was made from: a hub repository or a
// path. "" if unknown.
std::string SourceName(const ArtifactInfo& info);

// Adds a "checksum" over the rest. ParseArtifactInfo requires it; DataLoss when it does not match.
base::Json ToJson(const ArtifactInfo& info);
absl::StatusOr<ArtifactInfo> ParseArtifactInfo(const base::Json& json);
// Writes nibble.json atomically, for example to add a record or provenance to an existing artifact.
absl::Status WriteArtifactInfo(base::FileSystem& files, const std::string& directory, const ArtifactInfo& info);

// A tensor in a mapped file.
struct TensorView {
  kernels::DType dtype;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

// An opened artifact. Thread-compatible; views are valid for the lifetime of the Artifact.
class Artifact {
 public:
  // DataLoss when a file is missing or contradicts itself, Unimplemented when nibble.json has a newer version,
  // InvalidArgument naming the tensor when shapes or dtypes do not fit the config. Reads headers only; VerifyBytes
  // reads the weights.
  static absl::StatusOr<std::unique_ptr<Artifact>> Open(const std::string& directory);

  const ModelConfig& config() const { return config_; }
  const ArtifactInfo& info() const { return info_; }
  const std::string& directory() const { return directory_; }
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  absl::StatusOr<TensorView> Tensor(const std::string& name) const;  // NotFound
  // The name in tensors() of the values that the model computes with instead of `name`: the adapter's copy
  // (modules_to_save) if it has one, else `name` itself.
  std::string InUse(const std::string& name) const;
  // The values as f32, from any stored float type.
  absl::StatusOr<std::vector<float>> FloatTensor(const std::string& name) const;
  // Set for a lora artifact; the adapter's tensors are in tensors() under their PEFT names.
  const std::optional<AdapterConfig>& adapter() const { return adapter_; }
  // Reads every byte. DataLoss naming the file unless weights_digest and the digests of the small files
  // (provenance["files"]) match nibble.json; NotFound for a missing one. `cancelled` is checked before every MiB.
  absl::Status VerifyBytes(const base::Cancelled& cancelled = {}) const;

 private:
  Artifact() = default;
  std::string directory_;
  ModelConfig config_;
  ArtifactInfo info_;
  std::optional<AdapterConfig> adapter_;
  std::vector<std::shared_ptr<const base::MappedFile>> files_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace nibble::model
