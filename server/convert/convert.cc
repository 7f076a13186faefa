#include "server/convert/convert.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <type_traits>

#include "kernels/formats/nf4.h"
#include "kernels/formats/ternary.h"
#include "kernels/ops/quantize/quantize_int8.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/merge.h"
#include "server/convert/nf4_codes.h"
#include "server/convert/ternary.h"
#include "server/model/adapter_targets.h"
#include "server/model/artifact_writer.h"
#include "server/model/float_convert.h"
#include "server/model/forget_pages.h"
#include "server/model/merged_rows.h"
#include "server/model/safetensors.h"
#include "server/model/stored_tensors.h"

namespace nibble::convert {
namespace {

using base::StrCat;
using kernels::ConstMatrix;
using kernels::DType;
using model::Format;
using model::TensorRole;
using model::TensorSpec;

constexpr std::int64_t kRowGrain = 8;  // minimum rows per thread

template <typename T>
std::string_view Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Sums squares and finds the largest error per row, then combines rows in order: the same result for any split into
// blocks.
class ErrorMeter {
 public:
  ErrorMeter(std::string name, const kernels::Stream& stream) : stream_(stream) { error_.name = std::move(name); }

  // decoded(row, col) is the quantized value.
  template <typename Decoded>
  void Add(const ConstMatrix& weight, Decoded decoded) {
    struct Row {
      double difference = 0, weight = 0, max = 0;
    };
    std::vector<Row> rows(static_cast<std::size_t>(weight.rows));
    stream_.ParallelFor(weight.rows, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        Row& row = rows[static_cast<std::size_t>(r)];
        for (std::int64_t c = 0; c < weight.cols; ++c) {
          const double w = static_cast<double>(At(weight, r, c));
          const double e = static_cast<double>(decoded(r, c)) - w;
          row.difference += e * e;
          row.weight += w * w;
          row.max = std::max(row.max, std::fabs(e));
        }
      }
    });
    for (const Row& row : rows) {
      difference_ += row.difference;
      weight_ += row.weight;
      error_.max_abs_error = std::max(error_.max_abs_error, row.max);
    }
    elements_ += static_cast<double>(weight.rows) * static_cast<double>(weight.cols);
  }
  LayerError Result() {
    error_.rms_error = elements_ > 0 ? std::sqrt(difference_ / elements_) : 0.0;
    error_.relative_error = weight_ > 0 ? std::sqrt(difference_ / weight_) : 0.0;
    return error_;
  }

 private:
  const kernels::Stream& stream_;
  LayerError error_;
  double difference_ = 0;
  double weight_ = 0;
  double elements_ = 0;
};

class Converter {
 public:
  Converter(const model::Artifact& source, const ConvertOptions& options, const kernels::Stream& stream)
      : source_(source), options_(options), stream_(stream), info_(InfoOfConversion(source.info(), options)) {
    info_.base_digest = source.info().weights_digest;
    info_.source = "convert";
    info_.provenance = source.info().provenance;
    info_.provenance["converted_from"] = Name(source.info().format);
    if (!options.adapter_init.has_value()) return;
    const AdapterInit& init = *options.adapter_init;
    info_.provenance[kAdapterInit] = {{"method", Name(init.method)}, {"iterations", init.iterations}};
    // The name says where other programs find a base. They would find the source there, not this base.
    info_.provenance.erase(model::kSourceName);
  }

  absl::StatusOr<ConvertReport> Run(base::FileSystem& files, const std::string& target) {
    if (const absl::Status fits = model::CheckInFeatures(source_.config(), info_); !fits.ok()) {
      return base::FieldError("target", base::ToStd(fits.message()));
    }
    const std::vector<TensorSpec> specs = model::RequiredTensors(source_.config());
    NIBBLE_ASSIGN_OR_RETURN(auto plan, Plan());
    NIBBLE_ASSIGN_OR_RETURN(writer_, model::ArtifactWriter::Create(files, target, std::move(plan)));
    std::vector<TensorSpec> in_file = specs;
    model::SortForWriter(writer_->tensors(), in_file);
    std::map<std::string, LayerError> errors;
    for (const TensorSpec& spec : in_file) {
      NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(options_.cancelled));
      NIBBLE_RETURN_IF_ERROR(MakeInitial(spec));
      if (model::IsQuantized(spec, source_.config(), info_) || initial_.has_value()) {
        NIBBLE_ASSIGN_OR_RETURN(LayerError error, Put(spec));
        if (options_.measure_errors) errors[spec.name] = std::move(error);
      } else if (options_.to == Format::kBF16 && spec.shape.size() == 2) {
        NIBBLE_RETURN_IF_ERROR(PutRounded<kernels::BF16>(spec).status());
      } else {
        NIBBLE_RETURN_IF_ERROR(PutFloat(spec));
      }
      NIBBLE_ASSIGN_OR_RETURN(const model::TensorView done, source_.Tensor(source_.InUse(spec.name)));
      model::ForgetPages(done.bytes);
      if (initial_.has_value()) KeepInitial(spec);
    }
    NIBBLE_RETURN_IF_ERROR(writer_->CopyCompanions(source_.directory()));
    ConvertReport report;
    NIBBLE_ASSIGN_OR_RETURN(report.info, writer_->Finish(source_.config(), info_));
    report.adapter = AdapterValues();
    for (const TensorSpec& spec : specs) {
      if (const auto error = errors.find(spec.name); error != errors.end())
        report.layers.push_back(std::move(error->second));
    }
    for (const auto& [name, view] : source_.tensors()) report.source_weight_bytes += view.bytes.size();
    for (const model::TensorPlan& tensor : writer_->tensors().order()) {
      report.weight_bytes +=
          static_cast<std::uint64_t>(model::NumElements(tensor.shape).value_or(0) * kernels::SizeOf(tensor.dtype));
    }
    return report;
  }

 private:
  absl::StatusOr<LayerError> Put(const TensorSpec& spec) {
    switch (options_.to) {
      case Format::kInt8: return HasItsCodes(spec) ? CopyCodes(spec) : PutInt8(spec);
      case Format::kTernary: return PutTernary(spec);
      case Format::kBF16: return PutRounded<kernels::BF16>(spec);
      case Format::kF32: return PutRounded<float>(spec);
      default: return PutNf4(spec);
    }
  }

  // If the tensor is a target of the initial adapter, makes its adapter.
  absl::Status MakeInitial(const TensorSpec& spec) {
    initial_.reset();
    if (!options_.adapter_init.has_value()) return absl::OkStatus();
    const auto adapter = model::AdapterOn(options_.adapter_init->adapter, spec);
    if (!adapter.has_value()) return absl::OkStatus();
    NIBBLE_ASSIGN_OR_RETURN(WeightReader weight, WeightReader::Open(source_, spec.name, stream_));
    NIBBLE_ASSIGN_OR_RETURN(initial_, MakeInitialAdapter(spec.name, weight, *options_.adapter_init, *adapter, info_.nf4,
                                                         stream_, options_.cancelled));
    return absl::OkStatus();
  }

  void KeepInitial(const TensorSpec& spec) {
    const std::string module = model::LoraModule(spec.name.substr(0, spec.name.rfind('.')));
    adapter_values_[module + model::kLoraASuffix] = std::move(initial_->a);
    adapter_values_[module + model::kLoraBSuffix] = std::move(initial_->b);
    initial_.reset();
  }

  std::vector<std::vector<float>> AdapterValues() {
    std::vector<std::vector<float>> values;
    if (!options_.adapter_init.has_value()) return values;
    for (const model::TensorPlan& tensor : model::AdapterTensors(source_.config(), options_.adapter_init->adapter)) {
      values.push_back(std::move(adapter_values_[tensor.name]));
    }
    return values;
  }

  // The weight that the result stores: of the source, or the rest that an initial adapter leaves.
  absl::StatusOr<WeightReader> Open(const TensorSpec& spec) const {
    if (!initial_.has_value()) return WeightReader::Open(source_, spec.name, stream_);
    return WeightReader::Of(kernels::MakeConstMatrix(initial_->rest.data(), DType::kF32, spec.shape[0], spec.shape[1]),
                            stream_);
  }

  // Whether the source has the int8 codes of this tensor: it is an adapter on an int8 base, and no adapter changes the
  // tensor.
  bool HasItsCodes(const TensorSpec& spec) const {
    const auto found = source_.tensors().find(spec.name);
    return found != source_.tensors().end() && found->second.dtype == DType::kI8 &&
           !source_.adapter()->On(spec.name.substr(0, spec.name.rfind('.'))).has_value();
  }

  absl::StatusOr<LayerError> CopyCodes(const TensorSpec& spec) {
    for (const std::string& name : {spec.name, spec.name + model::kInt8ScaleSuffix}) {
      NIBBLE_ASSIGN_OR_RETURN(const model::TensorView view, source_.Tensor(name));
      NIBBLE_RETURN_IF_ERROR(
          writer_->tensors().Put(name, {reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()}));
    }
    return ErrorMeter(spec.name, stream_).Result();  // no error
  }

  // The result's type of a matrix that stays float: embedding, head, or a float linear of a ternary model.
  absl::StatusOr<DType> MatrixType(const std::string& name) const {
    if (options_.to == Format::kBF16) return DType::kBF16;
    if (options_.to == Format::kF32) return DType::kF32;
    if (options_.to == Format::kTernary) return info_.bitnet->head_dtype;
    const bool is_head = name == model::kHeadName || source_.config().tied_embeddings;
    if (options_.to == Format::kInt8 && is_head) return DType::kBF16;
    NIBBLE_ASSIGN_OR_RETURN(const model::TensorView view, source_.Tensor(name));
    return view.dtype;
  }
  absl::StatusOr<DType> FloatType(const TensorSpec& spec) const {
    if (spec.shape.size() == 2) return MatrixType(spec.name);
    return options_.to == Format::kBF16 ? DType::kBF16 : DType::kF32;
  }

  absl::StatusOr<std::vector<model::TensorPlan>> Plan() const {
    NIBBLE_ASSIGN_OR_RETURN(const auto stored, model::StoredTensors(source_.config(), info_));
    std::vector<model::TensorPlan> plan;
    for (const model::StoredTensor& tensor : stored) {
      DType dtype = tensor.dtypes[0];
      if (tensor.dtypes.size() > 1) {
        NIBBLE_ASSIGN_OR_RETURN(dtype, MatrixType(tensor.name));
      }
      plan.push_back({tensor.name, dtype, tensor.shape});
    }
    return plan;
  }

  absl::Status PutFloat(const TensorSpec& spec) {
    NIBBLE_ASSIGN_OR_RETURN(const model::TensorView view, source_.Tensor(source_.InUse(spec.name)));
    NIBBLE_ASSIGN_OR_RETURN(const DType dtype, FloatType(spec));
    if (view.dtype == dtype) {
      return writer_->tensors().Put(spec.name, {reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()});
    }
    NIBBLE_ASSIGN_OR_RETURN(const std::string bytes, model::ConvertFloats(view.bytes, view.dtype, dtype,
                                                                          model::NumElements(spec.shape).value_or(0)));
    return writer_->tensors().Put(spec.name, bytes);
  }

  // A matrix of a float model: dequantized and merged in f32, then rounded once.
  template <typename T>
  absl::StatusOr<LayerError> PutRounded(const TensorSpec& spec) {
    constexpr DType kType = std::is_same_v<T, float> ? DType::kF32 : DType::kBF16;
    NIBBLE_ASSIGN_OR_RETURN(WeightReader weight, Open(spec));
    const std::int64_t rows = weight.rows();
    const std::int64_t cols = weight.cols();
    std::vector<T> values(static_cast<std::size_t>(rows * cols));
    const std::int64_t block = RowsPerBlock(weight);
    for (std::int64_t begin = 0; begin < rows; begin += block) {
      NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(options_.cancelled));
      NIBBLE_ASSIGN_OR_RETURN(const ConstMatrix merged, weight.Rows(begin, std::min(rows, begin + block)));
      T* rounded = values.data() + begin * cols;
      stream_.ParallelFor(merged.rows, kRowGrain, [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t r = from; r < to; ++r) {
          for (std::int64_t c = 0; c < cols; ++c) rounded[r * cols + c] = kernels::RoundTo<T>(At(merged, r, c));
        }
      });
      const ConstMatrix made = kernels::MakeConstMatrix(rounded, kType, merged.rows, cols);
      if (const std::int64_t row = FirstRowNotFinite(made, stream_); row >= 0) {
        return absl::InvalidArgumentError(StrCat(spec.name, ": row ", begin + row, " is not finite"));
      }
    }
    NIBBLE_RETURN_IF_ERROR(writer_->tensors().Put(spec.name, Bytes(values)));
    if (!options_.measure_errors || !initial_.has_value()) return LayerError();
    return Measure(spec, kernels::MakeConstMatrix(values.data(), kType, rows, cols));
  }

  absl::StatusOr<LayerError> PutInt8(const TensorSpec& spec) {
    NIBBLE_ASSIGN_OR_RETURN(WeightReader weight, WeightReader::Open(source_, spec.name, stream_));
    const std::int64_t rows = weight.rows();
    const std::int64_t cols = weight.cols();
    std::vector<std::int8_t> codes(static_cast<std::size_t>(rows * cols));
    std::vector<float> scale(static_cast<std::size_t>(rows));
    const std::int64_t block = RowsPerBlock(weight);
    kernels::QuantizeInt8Args args;
    args.out.cols = cols;
    args.out.stride = kernels::Int8PaddedK(cols);
    std::vector<std::int8_t> padded(static_cast<std::size_t>(block * args.out.stride));
    args.out.codes = padded.data();
    ErrorMeter meter(spec.name, stream_);
    for (std::int64_t begin = 0; begin < rows; begin += block) {
      NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(options_.cancelled));
      const std::int64_t end = std::min(rows, begin + block);
      NIBBLE_ASSIGN_OR_RETURN(args.x, weight.Rows(begin, end));
      if (const std::int64_t row = FirstRowNotFinite(args.x, stream_); row >= 0) {
        return absl::InvalidArgumentError(StrCat(spec.name, ": row ", begin + row, " is not finite"));
      }
      args.out.scale = scale.data() + begin;
      args.out.rows = end - begin;
      NIBBLE_RETURN_IF_ERROR(kernels::QuantizeInt8(args, stream_));
      for (std::int64_t r = begin; r < end; ++r) {
        std::copy_n(padded.data() + (r - begin) * args.out.stride, cols, codes.data() + r * cols);
      }
      if (!options_.measure_errors) continue;
      meter.Add(args.x, [&](std::int64_t r, std::int64_t c) {
        return static_cast<float>(codes[static_cast<std::size_t>((begin + r) * cols + c)]) *
               scale[static_cast<std::size_t>(begin + r)];
      });
    }
    NIBBLE_RETURN_IF_ERROR(writer_->tensors().Put(spec.name, Bytes(codes)));
    NIBBLE_RETURN_IF_ERROR(writer_->tensors().Put(spec.name + model::kInt8ScaleSuffix, Bytes(scale)));
    return meter.Result();
  }

  absl::StatusOr<LayerError> PutTernary(const TensorSpec& spec) {
    NIBBLE_ASSIGN_OR_RETURN(WeightReader reader, WeightReader::Open(source_, spec.name, stream_));
    NIBBLE_ASSIGN_OR_RETURN(const ConstMatrix weight, reader.Rows(0, reader.rows()));
    NIBBLE_ASSIGN_OR_RETURN(const TernaryWeight made, TernarizeOnce(spec.name, weight, info_.bitnet->scaling, stream_));
    NIBBLE_RETURN_IF_ERROR(writer_->tensors().Put(spec.name, Bytes(made.rows)));
    NIBBLE_RETURN_IF_ERROR(writer_->tensors().Put(spec.name + model::kTernaryScaleSuffix,
                                                  {reinterpret_cast<const char*>(&made.scale), sizeof made.scale}));
    ErrorMeter meter(spec.name, stream_);
    if (!options_.measure_errors) return meter.Result();
    const std::int64_t row_bytes = kernels::TernaryRowBytes(weight.cols);
    meter.Add(weight, [&](std::int64_t r, std::int64_t c) {
      const int code = (made.rows[static_cast<std::size_t>(r * row_bytes + c / 4)] >> (2 * (c % 4)) & 3) - 1;
      return static_cast<float>(code) * made.scale;
    });
    return meter.Result();
  }

  absl::StatusOr<LayerError> PutNf4(const TensorSpec& spec) {
    NIBBLE_ASSIGN_OR_RETURN(WeightReader weight, Open(spec));
    NIBBLE_ASSIGN_OR_RETURN(const Nf4Codes made, MakeNf4Codes(weight, info_.nf4, stream_, options_.cancelled));
    NIBBLE_RETURN_IF_ERROR(writer_->tensors().Put(spec.name, Bytes(made.codes)));
    const std::string scales = spec.name + model::kNf4AbsmaxSuffix;
    if (made.form.double_quant) {
      NIBBLE_RETURN_IF_ERROR(writer_->tensors().Put(scales, Bytes(made.absmax_codes)));
      NIBBLE_RETURN_IF_ERROR(writer_->tensors().Put(spec.name + model::kNf4FactorSuffix, Bytes(made.factor)));
      NIBBLE_RETURN_IF_ERROR(writer_->tensors().Put(spec.name + model::kNf4OffsetSuffix, Bytes(made.offset)));
    } else {
      NIBBLE_RETURN_IF_ERROR(writer_->tensors().Put(scales, Bytes(made.absmax)));
    }
    if (!options_.measure_errors) return LayerError();
    return Measure(spec, made.weight());
  }

  // The error of the stored weight, with the initial adapter if there is one.
  absl::StatusOr<LayerError> Measure(const TensorSpec& spec, const model::FrozenWeight& stored) {
    NIBBLE_ASSIGN_OR_RETURN(WeightReader weight, WeightReader::Open(source_, spec.name, stream_));
    model::MergedRows made(stored);
    if (initial_.has_value()) {
      const model::LinearAdapter adapter = *model::AdapterOn(options_.adapter_init->adapter, spec);
      made.SetAdapter(kernels::MakeConstMatrix(initial_->a.data(), DType::kF32, adapter.rank, weight.cols()),
                      kernels::MakeConstMatrix(initial_->b.data(), DType::kF32, weight.rows(), adapter.rank),
                      static_cast<float>(adapter.scaling));
    }
    ErrorMeter meter(spec.name, stream_);
    const std::int64_t block = RowsPerBlock(weight);
    for (std::int64_t begin = 0; begin < weight.rows(); begin += block) {
      NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(options_.cancelled));
      const std::int64_t end = std::min(weight.rows(), begin + block);
      NIBBLE_ASSIGN_OR_RETURN(const ConstMatrix decoded, made.Rows(begin, end, stream_));
      NIBBLE_ASSIGN_OR_RETURN(const ConstMatrix rows, weight.Rows(begin, end));
      meter.Add(rows, [&](std::int64_t r, std::int64_t c) { return decoded.Row<float>(r)[c]; });
    }
    return meter.Result();
  }

  const model::Artifact& source_;
  const ConvertOptions& options_;
  const kernels::Stream& stream_;
  model::ArtifactInfo info_;
  std::unique_ptr<model::ArtifactWriter> writer_;
  std::optional<InitialAdapter> initial_;  // of the tensor in progress
  std::map<std::string, std::vector<float>> adapter_values_;
};

absl::Status CheckOptions(const ConvertOptions& options) {
  const int outliers = options.act_outliers.value_or(0);
  if (outliers < 0 || outliers > kernels::kMaxOutliers) {
    return base::FieldError("act_outliers", StrCat(outliers, ", wanted 0 to ", kernels::kMaxOutliers));
  }
  if (options.weight_only.value_or(false) && outliers != 0) {
    return base::FieldError("act_outliers", StrCat(outliers, ", wanted 0 with bf16 activations"));
  }
  for (const std::int64_t block : {options.nf4.block, options.nf4.scaler_block}) {
    const std::string problem = model::BlockProblem(block);
    if (!problem.empty()) return base::FieldError("nf4", StrCat("has a block that ", problem));
  }
  if (options.kv_dtype.has_value() && options.kv_dtype != DType::kF32 && options.kv_dtype != DType::kBF16) {
    return base::FieldError("kv_dtype", StrCat(kernels::Name(*options.kv_dtype), ", wanted f32 or bf16"));
  }
  return absl::OkStatus();
}

// A copy of a model that a job trained in int8 keeps the options of that training.
absl::Status CheckCopy(const model::ArtifactInfo& trained, const ConvertOptions& options) {
  if (options.act_outliers.value_or(trained.act_outliers) != trained.act_outliers) {
    return base::FieldError("act_outliers", StrCat(*options.act_outliers, ", wanted ", trained.act_outliers,
                                                   ", with which the int8 model was trained"));
  }
  if (options.weight_only.value_or(trained.weight_only) != trained.weight_only) {
    return base::FieldError("activations", trained.weight_only
                                               ? "are int8, wanted bf16, with which the int8 model was trained"
                                               : "are bf16, wanted int8, with which the int8 model was trained");
  }
  if (options.int8_head.value_or(trained.int8_head) != trained.int8_head) {
    return base::FieldError("head", "is int8, wanted bf16, with which the int8 model was trained");
  }
  if (options.kv_dtype.value_or(trained.kv_dtype) != trained.kv_dtype) {
    return base::FieldError("kv_dtype", StrCat(kernels::Name(*options.kv_dtype), ", wanted ",
                                               kernels::Name(trained.kv_dtype), ", with which the model was trained"));
  }
  return absl::OkStatus();
}

// An adapter on an int8 base has the head of the base, and its activations unless the options change them.
absl::Status CheckMerge(const model::ArtifactInfo& lora, const ConvertOptions& options) {
  if (lora.int8_head && !options.int8_head.value_or(true)) {
    return base::FieldError("head", "is bf16, wanted int8: the base of the adapter has only an int8 head");
  }
  if (options.weight_only.value_or(lora.weight_only) && options.act_outliers.value_or(0) != 0) {
    return base::FieldError(
        "act_outliers", StrCat(*options.act_outliers, ", wanted 0 with the bf16 activations of the adapter's base"));
  }
  return absl::OkStatus();
}

// The same tensors, in a file that is shared if possible.
absl::StatusOr<ConvertReport> CopyInt8(base::FileSystem& files, const model::Artifact& source,
                                       const std::string& target, const ConvertOptions& options) {
  const model::ArtifactInfo& trained = source.info();
  NIBBLE_ASSIGN_OR_RETURN(const auto writer, model::ArtifactWriter::CreateOn(files, target, source, options.cancelled));
  NIBBLE_RETURN_IF_ERROR(writer->CopyCompanions(source.directory()));
  model::ArtifactInfo info = trained;
  info.base_digest = trained.weights_digest;
  info.source = "convert";
  info.recorded_by.clear();
  info.provenance["converted_from"] = Name(trained.format);
  ConvertReport report;
  NIBBLE_ASSIGN_OR_RETURN(report.info, writer->Finish(source.config(), std::move(info)));
  for (const auto& [name, view] : source.tensors()) report.source_weight_bytes += view.bytes.size();
  report.weight_bytes = report.source_weight_bytes;
  return report;
}

// An initial adapter takes a part of float weights. The result must be able to keep the rest, and be a base that a job
// can train on.
absl::Status CheckInitialBase(const model::ArtifactInfo& source, const ConvertOptions& options) {
  const InitMethod method = options.adapter_init->method;
  const bool is_float = source.format == Format::kF32 || source.format == Format::kBF16;
  if (!is_float || source.bitnet.has_value()) {
    return base::FieldError("adapter_init",
                            StrCat("cannot be made from ",
                                   source.is_masters() ? "master weights of a BitNet model"
                                                       : StrCat("a model in format ", Name(source.format)),
                                   ", wanted an f32 or bf16 model"));
  }
  const bool float_target = options.to == Format::kF32 || options.to == Format::kBF16;
  if (options.to == Format::kNf4 || (float_target && method == InitMethod::kPissa)) return absl::OkStatus();
  return base::FieldError("target",
                          StrCat(Name(options.to), " cannot be the base of a ", Name(method), " adapter, wanted nf4",
                                 method == InitMethod::kPissa ? ", bf16 or f32" : ""));
}

// Whether a job trained the int8 codes themselves.
bool IsTrainedInInt8(const model::ArtifactInfo& info) {
  return info.format == Format::kInt8 && (info.source == "job" || info.source == "checkpoint");
}

}  // namespace

absl::Status CheckConversion(const model::ArtifactInfo& source, const ConvertOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckOptions(options));
  if (options.adapter_init.has_value()) return CheckInitialBase(source, options);
  const Format to = options.to;
  const Format from = source.format;
  const bool is_float = from == Format::kF32 || from == Format::kBF16;
  const bool is_nf4 = from == Format::kNf4 || from == Format::kLora;
  const bool known = to == Format::kInt8   ? is_float || is_nf4 || IsTrainedInInt8(source)
                     : to == Format::kBF16 ? from == Format::kF32 || is_nf4
                                           : (to == Format::kNf4 || to == Format::kTernary) && is_float;
  if (from == Format::kTernary && to == Format::kTernary) {
    return base::WithReason(absl::FailedPreconditionError("the model is already ternary; codes are made only once"),
                            "ALREADY_TERNARY");
  }
  if (!known) {
    return base::FieldError("target",
                            StrCat("cannot convert a ", Name(from), " model to ", Name(to),
                                   " (int8 is made from f32, bf16, nf4, lora, and copied from an int8 model of "
                                   "a job; nf4, ternary from f32, bf16; bf16 from f32, nf4, lora)"));
  }
  if (source.bitnet.has_value() && to != Format::kTernary) {
    return base::FieldError("target",
                            StrCat("master weights of a BitNet model can only become ternary, not ", Name(to)));
  }
  if (from == Format::kInt8) return CheckCopy(source, options);
  return from == Format::kLora && to == Format::kInt8 ? CheckMerge(source, options) : absl::OkStatus();
}

model::ArtifactInfo InfoOfConversion(const model::ArtifactInfo& source, const ConvertOptions& options) {
  model::ArtifactInfo info;
  info.format = options.to;
  if (source.format == Format::kInt8) {
    info.act_outliers = source.act_outliers;
    info.weight_only = source.weight_only;
    info.int8_head = source.int8_head;
    info.kv_dtype = source.kv_dtype;
    return info;
  }
  // An adapter on an int8 base keeps the options of the base, with which it was trained.
  const bool on_int8 = source.weight_format() == Format::kInt8;
  if (options.to == Format::kInt8) {
    const bool codes_before = on_int8 && !source.weight_only;
    const int outliers =
        codes_before ? source.act_outliers : source.trained_outliers.value_or(kernels::kDefaultOutliers);
    info.weight_only = options.weight_only.value_or(on_int8 && source.weight_only);
    info.act_outliers = info.weight_only ? 0 : options.act_outliers.value_or(outliers);
  }
  if (options.to == Format::kNf4) info.nf4 = options.nf4;
  if (options.to == Format::kBF16 && !options.adapter_init.has_value()) {
    info.trained_outliers = source.trained_outliers;
  }
  const bool trained = source.format == Format::kLora || source.source == "job" || source.source == "checkpoint" ||
                       source.trained_outliers.has_value();
  info.int8_head = options.to == Format::kInt8 && options.int8_head.value_or(on_int8 ? source.int8_head : !trained);
  const bool keeps_kv = on_int8 || options.to == Format::kF32;
  info.kv_dtype = options.kv_dtype.value_or(keeps_kv ? source.kv_dtype : DType::kBF16);
  if (options.to == Format::kTernary) {
    info.bitnet = source.bitnet.value_or(model::BitNetInfo());
    if (source.bitnet.has_value()) info.kv_dtype = options.kv_dtype.value_or(source.kv_dtype);
  }
  return info;
}

absl::StatusOr<ConvertReport> ConvertModel(base::FileSystem& files, const model::Artifact& source,
                                           const std::string& target, const ConvertOptions& options,
                                           const kernels::Stream& stream) {
  NIBBLE_RETURN_IF_ERROR(CheckConversion(source.info(), options));
  if (options.adapter_init.has_value()) {
    NIBBLE_RETURN_IF_ERROR(CheckAdapterInit(*options.adapter_init, source.config()));
  }
  if (source.info().format == Format::kInt8) return CopyInt8(files, source, target, options);
  return Converter(source, options, stream).Run(files, target);
}

base::Json ToJson(const ConvertReport& report) {
  base::Json json = base::Json::object();
  json["format"] = Name(report.info.format);
  json["digest"] = report.info.weights_digest;
  json["base_digest"] = report.info.base_digest;
  json["source_weight_bytes"] = report.source_weight_bytes;
  json["weight_bytes"] = report.weight_bytes;
  base::Json& layers = json["layers"] = base::Json::array();
  for (const LayerError& layer : report.layers) {
    layers.push_back({{"name", layer.name},
                      {"rms_error", layer.rms_error},
                      {"relative_error", layer.relative_error},
                      {"max_abs_error", layer.max_abs_error}});
  }
  return json;
}

}  // namespace nibble::convert
