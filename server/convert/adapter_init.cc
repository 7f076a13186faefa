#include "server/convert/adapter_init.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/low_rank.h"
#include "server/convert/nf4_codes.h"
#include "server/model/adapter_targets.h"
#include "server/model/merged_rows.h"

namespace nibble::convert {
namespace {

using base::FieldError;
using base::StrCat;
using kernels::ConstMatrix;
using kernels::DType;

// All rows in f32.
absl::StatusOr<std::vector<float>> ReadAll(const std::string& name, WeightReader& weight, const kernels::Stream& stream,
                                           const base::Cancelled& cancelled) {
  std::vector<float> values(static_cast<std::size_t>(weight.rows() * weight.cols()));
  const std::int64_t block = RowsPerBlock(weight);
  for (std::int64_t begin = 0; begin < weight.rows(); begin += block) {
    NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
    NIBBLE_ASSIGN_OR_RETURN(const ConstMatrix rows, weight.Rows(begin, std::min(weight.rows(), begin + block)));
    if (const std::int64_t row = FirstRowNotFinite(rows, stream); row >= 0) {
      return absl::InvalidArgumentError(StrCat(name, ": row ", begin + row, " is not finite"));
    }
    constexpr std::int64_t kRowGrain = 8;  // minimum rows per thread
    stream.ParallelFor(rows.rows, kRowGrain, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t r = from; r < to; ++r) {
        for (std::int64_t c = 0; c < rows.cols; ++c)
          values[static_cast<std::size_t>((begin + r) * rows.cols + c)] = At(rows, r, c);
      }
    });
  }
  return values;
}

absl::StatusOr<LowRank> Decompose(const std::string& name, const ConstMatrix& w, std::int64_t rank,
                                  const kernels::Stream& stream, const base::Cancelled& cancelled) {
  auto made = LargestParts(w, rank, stream, cancelled);
  if (made.ok() || !absl::IsInvalidArgument(made.status())) return made;
  return absl::InvalidArgumentError(StrCat(name, " ", base::ToStd(made.status().message())));
}

// out = W - scaling * B A, in blocks of rows; `out` may be the values of w.
absl::Status Subtract(const ConstMatrix& w, const LowRank& parts, std::int64_t rank, double scaling,
                      const kernels::Stream& stream, std::vector<float>& out) {
  model::MergedRows merged((model::FrozenWeight(w)));
  merged.SetAdapter(kernels::MakeConstMatrix(parts.a.data(), DType::kF32, rank, w.cols),
                    kernels::MakeConstMatrix(parts.b.data(), DType::kF32, w.rows, rank), static_cast<float>(-scaling));
  const std::int64_t block = RowsPerBlock(WeightReader::Of(w, stream));
  for (std::int64_t begin = 0; begin < w.rows; begin += block) {
    const std::int64_t end = std::min(w.rows, begin + block);
    NIBBLE_ASSIGN_OR_RETURN(const ConstMatrix rows, merged.Rows(begin, end, stream));
    std::copy_n(rows.Row<float>(0), (end - begin) * w.cols, out.data() + begin * w.cols);
  }
  return absl::OkStatus();
}

// W - Q, where Q are the values of the codes.
absl::StatusOr<std::vector<float>> ErrorOf(const ConstMatrix& w, const Nf4Codes& codes, const kernels::Stream& stream) {
  std::vector<float> error(static_cast<std::size_t>(w.rows * w.cols));
  model::MergedRows quantized((model::FrozenWeight(codes.weight())));
  const std::int64_t block = RowsPerBlock(WeightReader::Of(w, stream));
  for (std::int64_t begin = 0; begin < w.rows; begin += block) {
    const std::int64_t end = std::min(w.rows, begin + block);
    NIBBLE_ASSIGN_OR_RETURN(const ConstMatrix rows, quantized.Rows(begin, end, stream));
    const float *values = w.Row<float>(begin), *decoded = rows.Row<float>(0);
    for (std::int64_t i = 0; i < (end - begin) * w.cols; ++i)
      error[static_cast<std::size_t>(begin * w.cols + i)] = values[i] - decoded[i];
  }
  return error;
}

// `rest` holds W at first, and at the end the input of the last quantization: W minus the parts that the iteration
// before it found. So the base, which is `rest` in nf4, equals Q of the last iteration.
absl::StatusOr<LowRank> Loftq(const std::string& name, const ConstMatrix& w, const AdapterInit& init, std::int64_t rank,
                              const model::Nf4Options& nf4, const kernels::Stream& stream,
                              const base::Cancelled& cancelled, std::vector<float>& rest) {
  LowRank parts;
  for (int i = 0; i < init.iterations; ++i) {
    if (i > 0) NIBBLE_RETURN_IF_ERROR(Subtract(w, parts, rank, 1.0, stream, rest));
    WeightReader reader = WeightReader::Of(kernels::MakeConstMatrix(rest.data(), DType::kF32, w.rows, w.cols), stream);
    NIBBLE_ASSIGN_OR_RETURN(const Nf4Codes codes, MakeNf4Codes(reader, nf4, stream, cancelled));
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<float> error, ErrorOf(w, codes, stream));
    const ConstMatrix view = kernels::MakeConstMatrix(error.data(), DType::kF32, w.rows, w.cols);
    NIBBLE_ASSIGN_OR_RETURN(parts, Decompose(name, view, rank, stream, cancelled));
  }
  return parts;
}

}  // namespace

const char* Name(InitMethod method) { return method == InitMethod::kPissa ? "pissa" : "loftq"; }

absl::Status CheckAdapterInit(const AdapterInit& init, const model::ModelConfig& config) {
  if (init.adapter.dora) return FieldError("adapter_init", "has use_dora, wanted an adapter without magnitudes");
  const int max_iterations = init.method == InitMethod::kLoftq ? kMaxLoftqIterations : 1;
  if (init.iterations < 1 || init.iterations > max_iterations) {
    return FieldError("adapter_init.iterations",
                      StrCat("is ", init.iterations, ", wanted ",
                             init.method == InitMethod::kLoftq ? StrCat("1 to ", kMaxLoftqIterations)
                                                               : std::string("1 for PISSA, which has no iterations")));
  }
  NIBBLE_RETURN_IF_ERROR(model::CheckAdapterTargets("adapter_init", init.adapter, config));
  for (const model::TensorSpec& spec : model::RequiredTensors(config)) {
    const auto on = model::AdapterOn(init.adapter, spec);
    if (!on.has_value() || on->rank <= std::min(spec.shape[0], spec.shape[1])) continue;
    return FieldError("adapter_init.r",
                      StrCat("gives ", spec.name, " [", spec.shape[0], ", ", spec.shape[1], "] the rank ", on->rank,
                             ", wanted at most ", std::min(spec.shape[0], spec.shape[1])));
  }
  return absl::OkStatus();
}

absl::StatusOr<InitialAdapter> MakeInitialAdapter(const std::string& name, WeightReader& weight,
                                                  const AdapterInit& init, const model::LinearAdapter& adapter,
                                                  const model::Nf4Options& nf4, const kernels::Stream& stream,
                                                  const base::Cancelled& cancelled) {
  NIBBLE_ASSIGN_OR_RETURN(std::vector<float> values, ReadAll(name, weight, stream, cancelled));
  const ConstMatrix w = kernels::MakeConstMatrix(values.data(), DType::kF32, weight.rows(), weight.cols());
  InitialAdapter made;
  LowRank parts;
  if (init.method == InitMethod::kLoftq) {
    made.rest = values;
    NIBBLE_ASSIGN_OR_RETURN(parts, Loftq(name, w, init, adapter.rank, nf4, stream, cancelled, made.rest));
  } else {
    NIBBLE_ASSIGN_OR_RETURN(parts, Decompose(name, w, adapter.rank, stream, cancelled));
  }
  // As PEFT does for PiSSA: divides the singular values by the scaling. A and B each hold the root of the values, so
  // each is divided by the root of the scaling.
  const double root = std::sqrt(adapter.scaling);
  for (std::vector<float>* values_of : {&parts.a, &parts.b}) {
    for (float& value : *values_of) value = static_cast<float>(static_cast<double>(value) / root);
  }
  if (init.method == InitMethod::kPissa) {
    NIBBLE_RETURN_IF_ERROR(Subtract(w, parts, adapter.rank, adapter.scaling, stream, values));
    made.rest = std::move(values);
  }
  made.a = std::move(parts.a);
  made.b = std::move(parts.b);
  return made;
}

std::int64_t InitialAdapterBytes(const AdapterInit& init, const model::ModelConfig& config) {
  std::int64_t most = 0;
  for (const model::TensorSpec& spec : model::RequiredTensors(config)) {
    const auto on = model::AdapterOn(init.adapter, spec);
    if (!on.has_value()) continue;
    const std::int64_t rows = spec.shape[0], cols = spec.shape[1];
    // W; for LoftQ also `rest`, the error, and the codes with their scales.
    const std::int64_t copies = init.method == InitMethod::kLoftq ? 4 : 1;
    most = std::max(most, copies * rows * cols * static_cast<std::int64_t>(sizeof(float)) +
                              LargestPartsBytes(rows, cols, on->rank));
  }
  return most;
}

}  // namespace nibble::convert
