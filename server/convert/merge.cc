#include "server/convert/merge.h"

#include <cstring>

#include "kernels/formats/dense.h"
#include "kernels/formats/nf4.h"
#include "kernels/ops/matmul/matmul_dense.h"
#include "kernels/ops/quantize/dequantize_nf4.h"
#include "kernels/ops/quantize/double_dequantize.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/stored_tensors.h"

namespace nibble::convert {

using base::StrCat;
using kernels::DType;

absl::StatusOr<WeightReader> WeightReader::Open(const model::Artifact& source, const std::string& name,
                                                const kernels::Stream& stream) {
  WeightReader reader(stream);
  NIBBLE_ASSIGN_OR_RETURN(reader.view_, source.Tensor(name));
  if (reader.view_.shape.size() != 2) return absl::InternalError(StrCat(name, " is not a matrix"));
  reader.rows_ = reader.view_.shape[0];
  reader.cols_ = reader.view_.shape[1];
  if (reader.view_.dtype == DType::kU8) {
    NIBBLE_RETURN_IF_ERROR(reader.OpenNf4(source, name));
  } else if (reader.view_.dtype != DType::kF32 && reader.view_.dtype != DType::kBF16) {
    return absl::InvalidArgumentError(
        StrCat(name, " is ", kernels::Name(reader.view_.dtype), ", which cannot be converted again"));
  }
  if (source.adapter().has_value()) NIBBLE_RETURN_IF_ERROR(reader.OpenAdapter(source, name));
  return reader;
}

absl::Status WeightReader::OpenNf4(const model::Artifact& source, const std::string& name) {
  // The shape of the codes does not show whether K is odd; the config has K.
  for (const model::TensorSpec& spec : model::RequiredTensors(source.config())) {
    if (spec.name == name) cols_ = spec.shape[1];
  }
  NIBBLE_ASSIGN_OR_RETURN(const model::TensorView codes, source.Tensor(name + model::kNf4AbsmaxSuffix));
  NIBBLE_ASSIGN_OR_RETURN(const model::TensorView factor, source.Tensor(name + model::kNf4FactorSuffix));
  NIBBLE_ASSIGN_OR_RETURN(const model::TensorView offset, source.Tensor(name + model::kNf4OffsetSuffix));
  kernels::DoubleDequantizeArgs args;
  args.codes = reinterpret_cast<const std::int8_t*>(codes.bytes.data());
  args.factor = reinterpret_cast<const float*>(factor.bytes.data());
  std::memcpy(&args.offset, offset.bytes.data(), sizeof args.offset);
  args.n = rows_ * kernels::Nf4RowBlocks(cols_);
  absmax_.resize(static_cast<std::size_t>(args.n));
  args.absmax = absmax_.data();
  return kernels::DoubleDequantize(args, stream_);
}

absl::Status WeightReader::OpenAdapter(const model::Artifact& source, const std::string& name) {
  const std::string module = StrCat("base_model.model.", name.substr(0, name.rfind('.')));
  const auto a_view = source.Tensor(module + ".lora_A.weight");
  if (absl::IsNotFound(a_view.status())) return absl::OkStatus();  // this linear was not trained
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<float> a, source.FloatTensor(module + ".lora_A.weight"));
  NIBBLE_ASSIGN_OR_RETURN(lora_b_, source.FloatTensor(module + ".lora_B.weight"));
  rank_ = source.adapter()->rank;
  scaling_ = static_cast<float>(source.adapter()->scaling());
  std::vector<float> transposed(a.size());
  for (std::int64_t r = 0; r < rank_; ++r) {
    for (std::int64_t k = 0; k < cols_; ++k) {
      transposed[static_cast<std::size_t>(k * rank_ + r)] = a[static_cast<std::size_t>(r * cols_ + k)];
    }
  }
  panels_.resize(static_cast<std::size_t>(kernels::PackedDenseElements(cols_, rank_)));
  kernels::PackDenseWeight(transposed.data(), DType::kF32, cols_, rank_, panels_.data());
  return absl::OkStatus();
}

absl::StatusOr<kernels::ConstMatrix> WeightReader::Rows(std::int64_t begin, std::int64_t end) {
  const std::int64_t count = end - begin;
  if (view_.dtype != DType::kU8 && rank_ == 0) return Stored(begin, end);
  NIBBLE_RETURN_IF_ERROR(Widen(begin, end));
  if (rank_ > 0) NIBBLE_RETURN_IF_ERROR(AddDelta(begin, end));
  return kernels::MakeConstMatrix(values_.data(), DType::kF32, count, cols_);
}

kernels::ConstMatrix WeightReader::Stored(std::int64_t begin, std::int64_t end) const {
  const std::byte* at = view_.bytes.data() + begin * cols_ * kernels::SizeOf(view_.dtype);
  return kernels::MakeConstMatrix(at, view_.dtype, end - begin, cols_);
}

absl::Status WeightReader::Widen(std::int64_t begin, std::int64_t end) {
  const std::int64_t count = end - begin;
  values_.resize(static_cast<std::size_t>(count * cols_));
  if (view_.dtype != DType::kU8) {
    const kernels::ConstMatrix stored = Stored(begin, end);
    stream_.ParallelFor(count, 16, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t r = from; r < to; ++r) {
        for (std::int64_t c = 0; c < cols_; ++c) values_[static_cast<std::size_t>(r * cols_ + c)] = At(stored, r, c);
      }
    });
    return absl::OkStatus();
  }
  kernels::DequantizeNf4Args args;
  args.w.codes = reinterpret_cast<const std::uint8_t*>(view_.bytes.data()) + begin * kernels::Nf4RowBytes(cols_);
  args.w.absmax = absmax_.data() + begin * kernels::Nf4RowBlocks(cols_);
  args.w.rows = count;
  args.w.cols = cols_;
  args.out = kernels::MakeMatrix(values_.data(), DType::kF32, count, cols_);
  return kernels::DequantizeNf4(args, stream_);
}

// values += (B A) * scaling. Per element: one multiply-add chain over the rank, then a multiplication, then an
// addition.
absl::Status WeightReader::AddDelta(std::int64_t begin, std::int64_t end) {
  const std::int64_t count = end - begin;
  delta_.resize(values_.size());
  kernels::MatmulDenseArgs args;
  args.x = kernels::MakeConstMatrix(lora_b_.data() + begin * rank_, DType::kF32, count, rank_);
  args.w.panels = panels_.data();
  args.w.dtype = DType::kF32;
  args.w.rows = cols_;
  args.w.cols = rank_;
  args.y = kernels::MakeMatrix(delta_.data(), DType::kF32, count, cols_);
  NIBBLE_RETURN_IF_ERROR(kernels::MatmulDense(args, stream_));
  stream_.ParallelFor(count, 16, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from * cols_; i < to * cols_; ++i) {
      values_[static_cast<std::size_t>(i)] += delta_[static_cast<std::size_t>(i)] * scaling_;
    }
  });
  return absl::OkStatus();
}

}  // namespace nibble::convert
