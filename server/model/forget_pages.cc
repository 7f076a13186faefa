#include "server/model/forget_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace nibble::model {

void ForgetPages(std::span<const std::byte> bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t into = reinterpret_cast<std::uintptr_t>(bytes.data()) % page;
  const std::size_t skipped = into == 0 ? 0 : page - into;  // to the first page that begins in `bytes`
  if (bytes.size() < skipped + page) return;
  const std::span<const std::byte> pages = bytes.subspan(skipped, (bytes.size() - skipped) / page * page);
  // Only advice: a failure costs memory, nothing else.
  (void)::madvise(const_cast<std::byte*>(pages.data()), pages.size(), MADV_DONTNEED);
}

}  // namespace nibble::model
