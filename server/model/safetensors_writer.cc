#include "server/model/safetensors_writer.h"

#include <algorithm>

#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/safetensors.h"

namespace nibble::model {
namespace {

using base::StrCat;

constexpr std::uint64_t kAlignment = 64;

absl::StatusOr<std::uint64_t> Bytes(const TensorPlan& tensor) {
  const auto elements = NumElements(tensor.shape);
  std::int64_t bytes = 0;
  if (!elements.has_value() || __builtin_mul_overflow(*elements, kernels::SizeOf(tensor.dtype), &bytes)) {
    return absl::InvalidArgumentError(StrCat(tensor.name, " ", ShapeText(tensor.shape), ": its size overflows"));
  }
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace

std::string WeightsDigest(std::vector<TensorDigest> tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorDigest& a, const TensorDigest& b) { return a.name < b.name; });
  base::Sha256 sha;
  for (const TensorDigest& t : tensors) {
    sha.Update(StrCat(t.name, " ", SafetensorsName(t.dtype), " ", ShapeText(t.shape), " ", t.sha256, "\n"));
  }
  return sha.HexDigest();
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    base::FileSystem& files, const std::string& path, std::vector<TensorPlan> plan,
    const std::map<std::string, std::string>& metadata) {
  std::stable_sort(plan.begin(), plan.end(), [](const TensorPlan& a, const TensorPlan& b) {
    return kernels::SizeOf(a.dtype) < kernels::SizeOf(b.dtype);
  });
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter());
  base::Json header = base::Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  auto& members = header.get_ref<base::Json::object_t&>();
  std::uint64_t offset = 0;
  std::uint64_t before_widest = 0;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const TensorPlan& tensor = plan[i];
    if (!writer->position_.emplace(tensor.name, i).second || tensor.name == "__metadata__") {
      return absl::InvalidArgumentError(
          StrCat("tensor \"", tensor.name, "\" is planned twice, or its name is reserved"));
    }
    NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t bytes, Bytes(tensor));
    if (i > 0 && kernels::SizeOf(tensor.dtype) != kernels::SizeOf(plan[i - 1].dtype)) before_widest = offset;
    std::uint64_t end = 0;
    if (__builtin_add_overflow(offset, bytes, &end) || end > INT64_MAX) {
      return absl::InvalidArgumentError("the tensors together overflow a file's size");
    }
    // Container's function does not search for an equal name, so that many tensors take no quadratic time.
    members.base::Json::object_t::Container::emplace_back(
        tensor.name,
        base::Json{{"dtype", SafetensorsName(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}});
    offset = end;
  }
  std::string text = base::Dump(header);
  // The format allows spaces as padding. Sections before the widest have sizes that are multiples of their own
  // element size, so aligning the widest aligns all.
  text.append((kAlignment - (8 + text.size() + before_widest) % kAlignment) % kAlignment, ' ');
  if (text.size() > kMaxSafetensorsHeader)
    return absl::InvalidArgumentError("too many tensors for one safetensors header");
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  NIBBLE_ASSIGN_OR_RETURN(writer->file_, files.Create(path));
  NIBBLE_RETURN_IF_ERROR(writer->file_->Append(length));
  NIBBLE_RETURN_IF_ERROR(writer->file_->Append(text));
  writer->order_ = std::move(plan);
  return writer;
}

absl::Status SafetensorsWriter::Put(std::string_view name, std::string_view bytes) {
  const auto it = position_.find(name);
  if (it == position_.end()) return absl::InternalError(StrCat("tensor \"", name, "\" is not in the plan"));
  NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t wanted, Bytes(order_[it->second]));
  if (bytes.size() != wanted) {
    return absl::InternalError(StrCat("tensor \"", name, "\": ", bytes.size(), " bytes, wanted ", wanted));
  }
  if (it->second < next_ || held_.contains(it->second)) {
    return absl::InternalError(StrCat("tensor \"", name, "\" was put twice"));
  }
  if (it->second != next_) {
    held_.emplace(it->second, bytes);
    return absl::OkStatus();
  }
  NIBBLE_RETURN_IF_ERROR(Write(bytes));
  while (!held_.empty() && held_.begin()->first == next_) {
    NIBBLE_RETURN_IF_ERROR(Write(held_.begin()->second));
    held_.erase(held_.begin());
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Write(std::string_view bytes) {
  NIBBLE_RETURN_IF_ERROR(file_->Append(bytes));
  const TensorPlan& tensor = order_[next_++];
  digests_.push_back({tensor.name, tensor.dtype, tensor.shape, base::Sha256Hex(bytes)});
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  if (next_ != order_.size())
    return absl::InternalError(StrCat("tensor \"", order_[next_].name, "\" was never written"));
  NIBBLE_RETURN_IF_ERROR(file_->Sync());
  return file_->Close();
}

}  // namespace nibble::model
