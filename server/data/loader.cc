#include "server/data/loader.h"

#include <numeric>
#include <utility>

#include "kernels/philox.h"

namespace nibble::data {
namespace {

// Separates the shuffle's random numbers from others with the same seed.
constexpr std::uint64_t kShuffleStream = 0x73687566666c65;  // "shuffle"

}  // namespace

std::vector<std::int64_t> EpochOrder(std::int64_t num_examples, std::optional<std::uint64_t> seed, std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(num_examples));
  std::iota(order.begin(), order.end(), 0);
  if (!seed.has_value()) return order;
  for (std::size_t i = order.size(); i > 1; --i) {
    const double u = kernels::PhiloxUniform(*seed, i, kShuffleStream + static_cast<std::uint64_t>(epoch));
    std::swap(order[i - 1], order[static_cast<std::size_t>(u * static_cast<double>(i))]);
  }
  return order;
}

Loader::Loader(ExampleList examples, Packing packing, std::int64_t max_seq_len, std::optional<std::uint64_t> seed)
    : examples_(std::move(examples)), packing_(packing), max_seq_len_(max_seq_len), seed_(seed) {
  Seek({});
}

void Loader::Seek(Cursor cursor) {
  const bool known = !order_.empty() && cursor.epoch == cursor_.epoch;
  cursor_ = cursor;
  if (!known) order_ = EpochOrder(static_cast<std::int64_t>(examples_.size()), seed_, cursor.epoch);
}

std::int64_t Loader::RowEnd() const {
  std::int64_t row_tokens = 0, end = cursor_.taken;
  for (; end < num_examples(); ++end) {
    const std::int64_t size = examples_.num_tokens(At(end));
    if (row_tokens > 0 && (packing_ == Packing::kNone || row_tokens + size > max_seq_len_)) break;
    row_tokens += size;
  }
  return end;
}

void Loader::AppendRow(MicroBatch* batch) {
  for (const std::int64_t end = RowEnd(); cursor_.taken < end; ++cursor_.taken) {
    const Example example = examples_[At(cursor_.taken)];
    for (std::size_t i = 0; i < example.tokens.size(); ++i) {
      batch->tokens.push_back(example.tokens[i]);
      const bool counts = i + 1 < example.tokens.size() && example.trained[i + 1] != 0;
      batch->targets.push_back(counts ? example.tokens[i + 1] : -1);
      batch->num_trained += counts ? 1 : 0;
    }
    batch->segments.push_back(static_cast<std::int64_t>(batch->tokens.size()));
  }
  batch->rows.push_back(static_cast<std::int64_t>(batch->tokens.size()));
  ++batch->num_rows;
}

MicroBatch Loader::Next(std::int64_t rows) {
  MicroBatch batch;
  batch.segments.push_back(0);
  batch.rows.push_back(0);
  if (cursor_.taken >= num_examples()) Seek({cursor_.epoch + 1, 0});
  while (batch.num_rows < rows && cursor_.taken < num_examples()) AppendRow(&batch);
  return batch;
}

std::int64_t Loader::RowsInEpoch(std::int64_t epoch) const {
  Loader counter(examples_, packing_, max_seq_len_, seed_);
  counter.Seek({epoch, 0});
  std::int64_t rows = 0;
  for (; counter.cursor_.taken < counter.num_examples(); ++rows) counter.cursor_.taken = counter.RowEnd();
  return rows;
}

}  // namespace nibble::data
