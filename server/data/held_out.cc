#include "server/data/held_out.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/data/loader.h"

namespace nibble::data {
namespace {

constexpr std::uint64_t kSeed = 0x68656c646f7574;  // "heldout"

// The examples `indices` of `all`, in this order.
Dataset Part(const Dataset& all, std::vector<std::uint32_t> indices) {
  Dataset part;
  for (const std::uint32_t i : indices) {
    part.num_tokens += all.examples.num_tokens(i);
    part.num_trained += all.examples.num_trained(i);
  }
  part.examples = all.examples.Select(std::move(indices));
  return part;
}

}  // namespace

absl::StatusOr<HeldOut> HoldOut(const Dataset& all, double fraction) {
  if (!(fraction > 0.0 && fraction <= 0.5)) {  // also NaN
    return absl::InvalidArgumentError(base::StrCat("eval_fraction: is ", fraction, ", wanted above 0, at most 0.5"));
  }
  const std::size_t num_examples = all.examples.size();
  std::int64_t num_rows = 0;
  const auto begins_row = [&](std::size_t i) { return i == 0 || all.examples.line(i) != all.examples.line(i - 1); };
  for (std::size_t i = 0; i < num_examples; ++i) num_rows += begins_row(i) ? 1 : 0;
  if (num_rows < 2) {
    return base::WithReason(
        absl::InvalidArgumentError(base::StrCat("eval_fraction: the dataset has ", num_rows,
                                                num_rows == 1 ? " row" : " rows", " to train on, wanted at least 2")),
        "NO_TRAINABLE_TOKENS");
  }
  const auto wanted = static_cast<std::int64_t>(std::llround(fraction * static_cast<double>(num_rows)));
  const std::int64_t num_held_out = std::clamp<std::int64_t>(wanted, 1, num_rows - 1);
  const std::vector<std::int64_t> order = EpochOrder(num_rows, kSeed, /*epoch=*/0);
  std::vector<bool> is_held_out(static_cast<std::size_t>(num_rows));
  for (std::int64_t i = 0; i < num_held_out; ++i) {
    is_held_out[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = true;
  }
  std::vector<std::uint32_t> train, eval;
  std::size_t row = 0;
  for (std::size_t i = 0; i < num_examples; ++i) {
    if (i > 0 && begins_row(i)) ++row;
    (is_held_out[row] ? eval : train).push_back(static_cast<std::uint32_t>(i));
  }
  HeldOut parts{.train = Part(all, std::move(train)), .eval = Part(all, std::move(eval))};
  parts.eval.num_rows = num_held_out;
  // The summary of `train` counts the rows read, and the warnings about them, of both parts.
  DataSummary summary = all;
  summary.num_tokens = parts.train.num_tokens;
  summary.num_trained = parts.train.num_trained;
  static_cast<DataSummary&>(parts.train) = std::move(summary);
  return parts;
}

}  // namespace nibble::data
