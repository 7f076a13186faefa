#include "server/text/token_bytes.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace nibble::text {

void TokenBytes::Add(std::int32_t id, std::string_view bytes) {
  bytes = bytes.substr(0, kMaxBytes);
  ids_.push_back(id);
  blob_ += bytes;
  ends_.push_back(static_cast<std::uint32_t>(blob_.size()));
  // U+FFFD has three bytes.
  const auto not_ascii =
      std::count_if(bytes.begin(), bytes.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
  longest_text_bytes_ = std::max(longest_text_bytes_, bytes.size() + 2 * static_cast<std::size_t>(not_ascii));
  longest_.insert(std::upper_bound(longest_.begin(), longest_.end(), bytes.size(), std::greater<>()), bytes.size());
  if (longest_.size() > kMaxLongest) longest_.pop_back();
}

std::string_view TokenBytes::Of(std::int32_t id) const {
  const auto found = std::lower_bound(ids_.begin(), ids_.end(), id);
  if (found == ids_.end() || *found != id) return {};
  const auto index = static_cast<std::size_t>(found - ids_.begin());
  const std::size_t begin = index == 0 ? 0 : ends_[index - 1];
  return std::string_view(blob_).substr(begin, ends_[index] - begin);
}

std::size_t TokenBytes::BytesOfLongest(std::size_t count) const {
  const auto end = longest_.begin() + static_cast<std::ptrdiff_t>(std::min(count, longest_.size()));
  return std::accumulate(longest_.begin(), end, std::size_t{0});
}

}  // namespace nibble::text
