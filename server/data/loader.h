// The order in which examples reach the model: seeded shuffle, packing, and a cursor to resume from.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "server/data/example.h"

namespace nibble::data {

// kNone: one example per row. kSegmented: as many whole examples as fit into max_seq_len tokens; attention and
// positions restart at each example, so that packing changes no loss.
enum class Packing { kNone, kSegmented };

// Rows of a micro-batch laid end to end without padding.
//   tokens    [T]
//   targets   [T]   the next token of the same example where the loss counts, else -1
//   segments  [S+1] first token of each example, and T
//   rows      [R+1] first token of each row, and T
struct MicroBatch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
  std::vector<std::int64_t> segments;
  std::vector<std::int64_t> rows;
  std::int64_t num_rows = 0;
  std::int64_t num_trained = 0;
};

// Position of the loader: the epoch, and how many examples of its order were taken.
struct Cursor {
  std::int64_t epoch = 0;
  std::int64_t taken = 0;
};

// The order of epoch `epoch`: a Fisher-Yates shuffle drawn from Philox(seed, epoch), or the file's order without a
// seed.
std::vector<std::int64_t> EpochOrder(std::int64_t num_examples, std::optional<std::uint64_t> seed, std::int64_t epoch);

// Iterates over the examples without end. One thread.
class Loader {
 public:
  // Without a seed, as in evaluation, the order is that of the file.
  Loader(ExampleList examples, Packing packing, std::int64_t max_seq_len, std::optional<std::uint64_t> seed);

  // `rows` rows; a micro-batch never crosses an epoch's end, so the last one of an epoch may have fewer.
  MicroBatch Next(std::int64_t rows);

  Cursor cursor() const { return cursor_; }
  void Seek(Cursor cursor);  // `cursor` must be of the same examples and seed

  // Number of rows of an epoch. Reads no tokens.
  std::int64_t RowsInEpoch(std::int64_t epoch) const;

 private:
  void AppendRow(MicroBatch* batch);
  // The next row consists of the examples order_[cursor_.taken] to order_[RowEnd() - 1].
  std::int64_t RowEnd() const;
  std::size_t At(std::int64_t place) const { return static_cast<std::size_t>(order_[static_cast<std::size_t>(place)]); }
  std::int64_t num_examples() const { return static_cast<std::int64_t>(order_.size()); }

  const ExampleList examples_;
  const Packing packing_;
  const std::int64_t max_seq_len_;
  const std::optional<std::uint64_t> seed_;
  Cursor cursor_;
  std::vector<std::int64_t> order_;  // of cursor_.epoch
};

}  // namespace nibble::data
