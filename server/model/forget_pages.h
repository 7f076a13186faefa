// Releases pages of a mapped file that will not be read again soon. They count as resident memory of the process, so a
// program that lays out weights would otherwise hold them twice: as mapped pages and in its own layout.
#pragma once
#include <cstddef>
#include <span>

namespace nibble::model {

// Unmaps the whole pages of `bytes` from the process; they stay in the page cache, and reading them maps them again.
// `bytes` must lie in a mapped file; otherwise its contents are lost.
void ForgetPages(std::span<const std::byte> bytes);

}  // namespace nibble::model
