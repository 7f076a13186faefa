#include "kernels/weight_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace nibble::kernels {
namespace {

constexpr std::int64_t kHugePage = std::int64_t{2} << 20;

}  // namespace

WeightBuffer::WeightBuffer(std::int64_t size) : size_(size) {
  if (size <= 0) return;
  const std::int64_t alignment = size >= kHugePage ? kHugePage : 64;
  if (size > PTRDIFF_MAX - alignment) return;
  const std::int64_t rounded = (size + alignment - 1) / alignment * alignment;
  data_.reset(static_cast<std::uint8_t*>(
      std::aligned_alloc(static_cast<std::size_t>(alignment), static_cast<std::size_t>(rounded))));
  if (data_ == nullptr) return;
  // Advice only: without huge pages everything works, but slower.
  if (alignment == kHugePage) madvise(data_.get(), static_cast<std::size_t>(rounded), MADV_HUGEPAGE);
  std::memset(data_.get(), 0, static_cast<std::size_t>(size));
}

void WeightBuffer::Free::operator()(std::uint8_t* p) const { std::free(p); }

}  // namespace nibble::kernels
