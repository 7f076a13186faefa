// Maxima and the n largest elements of a row without sorting it: for sampling and log-probabilities over vocabularies
// of up to 2^31 - 1 ids. Order: larger values first; equal values (+0 equals -0) by lower id.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace nibble::kernels {

// A row of values, in groups of Vec::kLanes, which begin at the multiples of that number.
template <typename Vec>
class WholeRow {
 public:
  WholeRow(const float* values, std::int64_t size) : values_(values), size_(size) {}

  std::int64_t size() const { return size_; }
  float operator[](std::int64_t i) const { return values_[i]; }
  static constexpr bool Skips(std::int64_t) { return false; }
  // Bit l is set if the row has an element i + l.
  std::uint32_t Lanes(std::int64_t i) const { return size_ - i >= Vec::kLanes ? 0xffffu : (1u << (size_ - i)) - 1u; }
  // -inf after the end of the row.
  Vec Load(std::int64_t i) const {
    constexpr float kFill = -std::numeric_limits<float>::infinity();
    return size_ - i >= Vec::kLanes ? Vec::Load(values_ + i)
                                    : Vec::LoadPartial(values_ + i, static_cast<int>(size_ - i), kFill);
  }

 private:
  const float* values_;
  std::int64_t size_;
};

// A row in which only some elements count: element i if bit i % 32 of word i / 32 is set. The others are like -inf, and
// groups without an element that counts may be skipped.
template <typename Vec>
class MaskedRow {
 public:
  MaskedRow(WholeRow<Vec> row, const std::uint32_t* mask) : row_(row), mask_(mask) {}

  std::int64_t size() const { return row_.size(); }
  float operator[](std::int64_t i) const {
    return (mask_[i / 32] >> (i % 32) & 1) != 0 ? row_[i] : -std::numeric_limits<float>::infinity();
  }
  bool Skips(std::int64_t i) const { return Lanes(i) == 0; }
  std::uint32_t Lanes(std::int64_t i) const { return mask_[i / 32] >> (i % 32) & row_.Lanes(i); }
  Vec Load(std::int64_t i) const {
    return Vec::Select(Lanes(i), row_.Load(i), Vec::Set1(-std::numeric_limits<float>::infinity()));
  }

 private:
  WholeRow<Vec> row_;
  const std::uint32_t* mask_;
};

// Row: WholeRow<Vec> or MaskedRow<Vec>.
template <typename Vec, typename Row>
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

  static RowMax Max(const Row& row) {
    RowMax best;
    std::int64_t best_block = 0;
    Vec bad = Vec::Zero();
    for (std::int64_t block = 0; block < row.size(); block += kBlock) {
      Vec m = Vec::Set1(-kInf);
      for (std::int64_t i = block; i < std::min(row.size(), block + kBlock); i += Vec::kLanes) {
        if (row.Skips(i)) continue;
        const Vec v = row.Load(i);
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
    while (row[i] != best.value) ++i;
    best.id = static_cast<std::int32_t>(i);
    return best;
  }

  // Appends the elements i + l for which bit l of `lanes` is set.
  static void Append(const Row& row, std::int64_t i, std::uint32_t lanes, std::vector<Entry>* entries) {
    while (lanes != 0) {
      const int lane = std::countr_zero(lanes);
      lanes &= lanes - 1;
      entries->push_back({row[i + lane], static_cast<std::int32_t>(i + lane)});
    }
  }

  static void Keep(std::vector<Entry>* entries, std::int64_t n) {
    if (static_cast<std::int64_t>(entries->size()) <= n) return;
    std::nth_element(entries->begin(), entries->begin() + (n - 1), entries->end(), Before);
    entries->resize(static_cast<std::size_t>(n));
  }

  // The n largest of the elements that count, in order. The row holds no NaN.
  static std::vector<Entry> Largest(const Row& row, std::int64_t n) {
    n = std::min(n, row.size());
    std::vector<Entry> entries;
    if (n <= 0) return entries;
    const std::int64_t capacity = std::min(row.size(), std::max<std::int64_t>(2 * n, 256));
    entries.reserve(static_cast<std::size_t>(capacity + Vec::kLanes));
    bool full = false;
    Vec threshold = Vec::Set1(-kInf);  // n-th largest so far; a later equal element has a higher id and sorts after it
    for (std::int64_t i = 0; i < row.size(); i += Vec::kLanes) {
      if (row.Skips(i)) continue;
      std::uint32_t lanes = row.Lanes(i);
      if (full) lanes &= Vec::MaskGreater(row.Load(i), threshold);
      Append(row, i, lanes, &entries);
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
  static void AppendTies(const Row& row, std::vector<Entry>* entries) {
    const Entry last = entries->back();
    const Vec value = Vec::Set1(last.value);
    for (std::int64_t i = last.id / Vec::kLanes * Vec::kLanes; i < row.size(); i += Vec::kLanes) {
      const Vec v = row.Load(i);
      std::uint32_t lanes = ~Vec::MaskGreater(value, v) & ~Vec::MaskGreater(v, value) & row.Lanes(i);
      if (i <= last.id) lanes &= ~0u << (last.id - i + 1);  // ids above last.id
      Append(row, i, lanes, entries);
    }
  }
};

}  // namespace nibble::kernels
