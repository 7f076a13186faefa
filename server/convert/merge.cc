#include "server/convert/merge.h"

#include <cmath>

#include "kernels/formats/int8.h"
#include "kernels/formats/nf4.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/nf4_scales.h"
#include "server/model/stored_tensors.h"

namespace nibble::convert {

using base::StrCat;
using kernels::DType;

absl::StatusOr<WeightReader> WeightReader::Open(const model::Artifact& source, const std::string& name,
                                                const kernels::Stream& stream) {
  WeightReader reader(stream);
  NIBBLE_ASSIGN_OR_RETURN(reader.view_, source.Tensor(source.InUse(name)));
  if (reader.view_.shape.size() != 2) return absl::InternalError(StrCat(name, " is not a matrix"));
  reader.rows_ = reader.view_.shape[0];
  reader.cols_ = reader.view_.shape[1];
  if (reader.view_.dtype == DType::kU8) {
    NIBBLE_RETURN_IF_ERROR(reader.OpenNf4(source, name));
  } else if (reader.view_.dtype == DType::kI8) {
    NIBBLE_RETURN_IF_ERROR(reader.OpenInt8(source, name));
  } else if (reader.view_.dtype != DType::kF32 && reader.view_.dtype != DType::kBF16) {
    return absl::InvalidArgumentError(
        StrCat(name, " is ", kernels::Name(reader.view_.dtype), ", which cannot be converted again"));
  } else {
    reader.merged_ = model::MergedRows(
        kernels::MakeConstMatrix(reader.view_.bytes.data(), reader.view_.dtype, reader.rows_, reader.cols_));
  }
  if (source.adapter().has_value()) NIBBLE_RETURN_IF_ERROR(reader.OpenAdapter(source, name));
  return reader;
}

WeightReader WeightReader::Of(const kernels::ConstMatrix& rows, const kernels::Stream& stream) {
  WeightReader reader(stream);
  const auto bytes = static_cast<std::size_t>(rows.rows * rows.cols * kernels::SizeOf(rows.dtype));
  reader.view_ = {rows.dtype, {rows.rows, rows.cols}, {static_cast<const std::byte*>(rows.data), bytes}};
  reader.rows_ = rows.rows;
  reader.cols_ = rows.cols;
  return reader;
}

absl::Status WeightReader::OpenNf4(const model::Artifact& source, const std::string& name) {
  // The shape of the codes does not show whether K is odd; the config has K.
  for (const model::TensorSpec& spec : model::RequiredTensors(source.config())) {
    if (spec.name == name) cols_ = spec.shape[1];
  }
  const std::int64_t block = source.info().nf4.block;
  absmax_.resize(static_cast<std::size_t>(rows_ * kernels::Nf4RowBlocks(cols_, block)));
  merged_ = model::MergedRows(kernels::Nf4Weight{reinterpret_cast<const std::uint8_t*>(view_.bytes.data()),
                                                 absmax_.data(), rows_, cols_, block});
  return model::ReadNf4Scales(source, name, rows_, cols_, stream_, absmax_.data());
}

absl::Status WeightReader::OpenInt8(const model::Artifact& source, const std::string& name) {
  NIBBLE_ASSIGN_OR_RETURN(const model::TensorView scale, source.Tensor(name + model::kInt8ScaleSuffix));
  tiles_.resize(static_cast<std::size_t>(kernels::PackedInt8Bytes(rows_, cols_)));
  row_sum_.resize(static_cast<std::size_t>(kernels::RoundUp(rows_, kernels::kInt8TileRows)));
  kernels::PackInt8Weight(reinterpret_cast<const std::int8_t*>(view_.bytes.data()), rows_, cols_, tiles_.data(),
                          row_sum_.data());
  merged_ =
      model::MergedRows(kernels::PackedInt8Weight{tiles_.data(), reinterpret_cast<const float*>(scale.bytes.data()),
                                                  row_sum_.data(), rows_, cols_, kernels::Int8PaddedK(cols_)});
  return absl::OkStatus();
}

absl::Status WeightReader::OpenAdapter(const model::Artifact& source, const std::string& name) {
  const std::string path = name.substr(0, name.rfind('.'));
  const std::optional<model::LinearAdapter> adapter = source.adapter()->On(path);
  if (!adapter.has_value()) return absl::OkStatus();
  const std::string module = model::LoraModule(path);
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<float> a, source.FloatTensor(module + model::kLoraASuffix));
  NIBBLE_ASSIGN_OR_RETURN(lora_b_, source.FloatTensor(module + model::kLoraBSuffix));
  const auto matrix = [](const std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
    return kernels::MakeConstMatrix(values.data(), DType::kF32, rows, cols);
  };
  merged_.SetAdapter(matrix(a, adapter->rank, cols_), matrix(lora_b_, rows_, adapter->rank),
                     static_cast<float>(adapter->scaling));
  if (source.adapter()->dora) {
    NIBBLE_ASSIGN_OR_RETURN(magnitudes_, source.FloatTensor(module + model::kMagnitudeSuffix));
    merged_.SetMagnitudes(magnitudes_.data());
  }
  has_adapter_ = true;
  return absl::OkStatus();
}

absl::StatusOr<kernels::ConstMatrix> WeightReader::Rows(std::int64_t begin, std::int64_t end) {
  if (view_.dtype == DType::kU8 || view_.dtype == DType::kI8 || has_adapter_) return merged_.Rows(begin, end, stream_);
  const std::byte* at = view_.bytes.data() + begin * cols_ * kernels::SizeOf(view_.dtype);
  return kernels::MakeConstMatrix(at, view_.dtype, end - begin, cols_);
}

std::int64_t FirstRowNotFinite(const kernels::ConstMatrix& m, const kernels::Stream& stream) {
  std::vector<std::uint8_t> spoilt(static_cast<std::size_t>(m.rows), 0);
  constexpr std::int64_t kRowGrain = 8;  // minimum rows per thread
  stream.ParallelFor(m.rows, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = 0; c < m.cols; ++c) {
        if (!std::isfinite(At(m, r, c))) spoilt[static_cast<std::size_t>(r)] = 1;
      }
    }
  });
  const auto found = std::find(spoilt.begin(), spoilt.end(), 1);
  return found == spoilt.end() ? -1 : found - spoilt.begin();
}

}  // namespace nibble::convert
