// Maxima and the n largest elements of a row without sorting it: for sampling and log-probabilities over vocabularies
// of up to 2^31 - 1 ids. Order: larger values first; equal values (+0 equals -0) by lower id.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace nibble::kernels {

template <typename Vec>
struct TopSelect {
  // Nested, so that each instruction set has its own instantiations of containers of Entry.
  struct Entry {
    float value;
    std::int32_t id;
  };
  struct RowMax {
    float value = -std::numeric_limits<float>::infinity();
    std::int32_t id = 0;
    bool usable = false;  // no NaN, no +inf, at least one finite element
  };

  // Max searches a block of this many elements again for the id of the maximum. sample_vec.h sums weights in blocks of
  // the same length, so another length would change draws.
  static constexpr std::int64_t kBlock = 1024;
  static constexpr float kInf = std::numeric_limits<float>::infinity();

  static bool Before(const Entry& a, const Entry& b) {
    return a.value > b.value || (a.value == b.value && a.id < b.id);
  }

  static Vec LoadTail(const float* x, std::int64_t i, std::int64_t size) {
    return size - i >= Vec::kLanes ? Vec::Load(x + i) : Vec::LoadPartial(x + i, static_cast<int>(size - i), -kInf);
  }

  static RowMax Max(const float* x, std::int64_t size) {
    RowMax best;
    std::int64_t best_block = 0;
    Vec bad = Vec::Zero();
    for (std::int64_t block = 0; block < size; block += kBlock) {
      Vec m = Vec::Set1(-kInf);
      for (std::int64_t i = block; i < std::min(size, block + kBlock); i += Vec::kLanes) {
        const Vec v = LoadTail(x, i, size);
        m = Vec::Max(m, v);
        bad = bad + Vec::SelectLess(v, Vec::Set1(kInf), Vec::Zero(), Vec::Set1(1.0f));
      }
      const float block_max = m.ReduceMax();
      if (block_max > best.value) {
        best.value = block_max;
        best_block = block;
      }
    }
    best.usable = bad.ReduceMax() == 0.0f && best.value > -kInf;
    if (!best.usable) return best;
    std::int64_t i = best_block;
    while (x[i] != best.value) ++i;
    best.id = static_cast<std::int32_t>(i);
    return best;
  }

  static void Append(const float* x, std::int64_t i, std::uint32_t mask, std::vector<Entry>* entries) {
    while (mask != 0) {
      const int lane = std::countr_zero(mask);
      mask &= mask - 1;
      entries->push_back({x[i + lane], static_cast<std::int32_t>(i + lane)});
    }
  }

  static std::uint32_t ValidLanes(std::int64_t i, std::int64_t size) {
    return size - i >= Vec::kLanes ? 0xffffu : (1u << (size - i)) - 1u;
  }

  static void Keep(std::vector<Entry>* entries, std::int64_t n) {
    if (static_cast<std::int64_t>(entries->size()) <= n) return;
    std::nth_element(entries->begin(), entries->begin() + (n - 1), entries->end(), Before);
    entries->resize(static_cast<std::size_t>(n));
  }

  // The n largest, in order. x holds no NaN.
  static std::vector<Entry> Largest(const float* x, std::int64_t size, std::int64_t n) {
    n = std::min(n, size);
    std::vector<Entry> entries;
    if (n <= 0) return entries;
    const std::int64_t capacity = std::min(size, std::max<std::int64_t>(2 * n, 256));
    entries.reserve(static_cast<std::size_t>(capacity + Vec::kLanes));
    bool full = false;
    Vec threshold = Vec::Set1(-kInf);  // n-th largest so far; a later equal element has a higher id and sorts after it
    for (std::int64_t i = 0; i < size; i += Vec::kLanes) {
      std::uint32_t mask = ValidLanes(i, size);
      if (full) mask &= Vec::MaskGreater(LoadTail(x, i, size), threshold);
      Append(x, i, mask, &entries);
      if (static_cast<std::int64_t>(entries.size()) >= capacity && capacity > n) {
        Keep(&entries, n);
        threshold = Vec::Set1(entries[static_cast<std::size_t>(n - 1)].value);
        full = true;
      }
    }
    Keep(&entries, n);
    std::sort(entries.begin(), entries.end(), Before);
    return entries;
  }

  // Appends the elements that equal the last entry and come after it.
  static void AppendTies(const float* x, std::int64_t size, std::vector<Entry>* entries) {
    const Entry last = entries->back();
    const Vec value = Vec::Set1(last.value);
    for (std::int64_t i = last.id / Vec::kLanes * Vec::kLanes; i < size; i += Vec::kLanes) {
      const Vec v = LoadTail(x, i, size);
      std::uint32_t mask = ~Vec::MaskGreater(value, v) & ~Vec::MaskGreater(v, value) & ValidLanes(i, size);
      if (i <= last.id) mask &= ~0u << (last.id - i + 1);  // ids above last.id
      Append(x, i, mask, entries);
    }
  }
};

}  // namespace nibble::kernels
