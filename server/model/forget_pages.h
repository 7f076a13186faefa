// Pages of a mapped file that will not be read again soon. They count as resident memory of the process until then, so a program that
// lays out weights would hold them twice: in the file and in its own layout.
#pragma once
#include <cstddef>
#include <span>

namespace nibble::model {

// Whole pages of `bytes` leave the process; they stay in the page cache. Reading them again is correct, and maps them again.
// `bytes` must lie in a mapped file, else their contents are lost.
void ForgetPages(std::span<const std::byte> bytes);

}  // namespace nibble::model
