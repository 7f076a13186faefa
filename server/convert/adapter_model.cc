#include "server/convert/adapter_model.h"

#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/convert.h"

namespace nibble::convert {
namespace {

using base::StrCat;
using model::Format;

// `got`: the weights_digest of `base` or of its nf4 form with the options `nf4`, whichever was compared with
// `trained_on`, the digest that the adapter names.
absl::Status Mismatch(const model::ArtifactInfo& base, const model::Nf4Options& nf4, const base::Json& provenance,
                      const std::string& got, const std::string& trained_on) {
  const std::string name = base::GetString(provenance, "base_model", "", "").value_or("");
  std::string text = StrCat("the adapter was trained on weights ", trained_on, ", but the base",
                            name.empty() ? "" : StrCat(" \"", name, "\""), ", stored as ", Name(base.format),
                            ", has the digest ", base.weights_digest);
  if (got != base.weights_digest) {
    text += StrCat(" and, quantized to nf4 as for a qlora job (", Describe(nf4), "), ", got);
  }
  text += "; give the model that the adapter was trained on (nibble models get NAME prints a model's digest";
  if (got != base.weights_digest)
    text +=
        ", nibble models convert NAME --to nf4 --name NEW makes its nf4 form, which --nf4-block, --scaler-block and "
        "--no-double-quant change";
  return base::WithReason(absl::FailedPreconditionError(text + ")"), "BASE_MISMATCH",
                          {{"got", got}, {"wanted", trained_on}});
}

// `base` is either `given`, the base that the user named, or its nf4 form.
absl::StatusOr<model::ArtifactInfo> Join(base::FileSystem& files, const model::Artifact& base,
                                         const model::ArtifactInfo& given, model::PeftAdapter adapter,
                                         const base::Json& provenance, const std::string& target, const char* made_of) {
  // From here on, only nibble.json stores the digest.
  const std::string trained_on = std::exchange(adapter.config.base_digest, "");
  const std::string& digest = base.info().weights_digest;
  if (!trained_on.empty() && trained_on != digest) {
    return Mismatch(given, adapter.config.base_nf4, provenance, digest, trained_on);
  }
  return MakeLoraModel(files, base, adapter.config, adapter.values, provenance, target, made_of);
}

}  // namespace

absl::Status CheckAdapterBase(const model::ArtifactInfo& info) {
  const bool is_float = info.format == Format::kF32 || info.format == Format::kBF16;
  const bool has_codes = info.format == Format::kNf4 || info.format == Format::kInt8;
  if (has_codes || (is_float && !info.bitnet.has_value())) return absl::OkStatus();
  const char* got = info.is_masters() ? "master weights of a BitNet model" : Name(info.format);
  return base::WithReason(
      absl::FailedPreconditionError(StrCat("the base of an adapter is ", got, ", wanted nf4, int8, f32 or bf16")),
      "ADAPTER_BASE", {{"got", got}, {"wanted", "nf4, int8, f32, bf16"}});
}

bool RunsOnBaseItself(const model::ArtifactInfo& base, const model::AdapterConfig& config) {
  const bool has_codes = base.format == Format::kNf4 || base.format == Format::kInt8;
  return has_codes || config.base_digest == base.weights_digest;
}

absl::StatusOr<model::ArtifactInfo> MakeAdapterModel(base::FileSystem& files, const model::Artifact& base,
                                                     model::PeftAdapter adapter, const base::Json& provenance,
                                                     const std::string& scratch, const std::string& target,
                                                     const kernels::Stream& stream, const char* made_of) {
  NIBBLE_RETURN_IF_ERROR(CheckAdapterBase(base.info()));
  if (RunsOnBaseItself(base.info(), adapter.config)) {
    return Join(files, base, base.info(), std::move(adapter), provenance, target, made_of);
  }
  NIBBLE_RETURN_IF_ERROR(ConvertModel(files, base, scratch,
                                      {.to = Format::kNf4, .nf4 = adapter.config.base_nf4, .measure_errors = false},
                                      stream)
                             .status());
  absl::StatusOr<model::ArtifactInfo> made = [&]() -> absl::StatusOr<model::ArtifactInfo> {
    NIBBLE_ASSIGN_OR_RETURN(const auto nf4, model::Artifact::Open(scratch));
    return Join(files, *nf4, base.info(), std::move(adapter), provenance, target, made_of);
  }();
  const absl::Status removed = files.RemoveAll(scratch);
  return made.ok() && !removed.ok() ? removed : std::move(made);
}

}  // namespace nibble::convert
