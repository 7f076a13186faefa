// The body of sample.h for any Vec (vec16_*.h). It sorts no more than a draw needs: it takes growing prefixes of the
// descending order until the filters or the draw end the list.
#pragma once
#include <algorithm>
#include <vector>

#include "kernels/math.h"
#include "kernels/ops/sample/sample_launch.h"
#include "kernels/philox.h"
#include "kernels/stream.h"
#include "kernels/top_select.h"

namespace nibble::kernels {

// Row: of top_select.h.
template <typename Vec, typename Row>
class RowSampler {
 public:
  RowSampler(const Row& logits, const SampleParams& params)
      : row_(logits), params_(params), max_(Select::Max(logits)) {}

  bool usable() const { return max_.usable; }

  std::int32_t Draw() const {
    if (params_.temperature == 0.0f) return max_.id;
    const double u = PhiloxUniform(params_.seed, params_.counter);
    const std::vector<Candidate> kept = Candidates(HasFilter() ? 2.0 : u);
    const double target = HasFilter() ? u * kept.back().cumulative : u * Total();
    for (const Candidate& c : kept) {
      if (c.cumulative > target) return c.id;
    }
    return kept.back().id;  // u is just below 1 and the sum was rounded down
  }

 private:
  using Select = TopSelect<Vec, Row>;
  using Entry = typename Select::Entry;
  // cumulative: the sum of the weights e^((logit - max) / temperature) up to and including this candidate.
  struct Candidate {
    std::int32_t id;
    float weight;
    double cumulative;
  };

  // The candidates that pass the filters, in descending order. Without a filter the list may end where its sum exceeds
  // enough_u times the total, which never happens if enough_u is 2.
  std::vector<Candidate> Candidates(double enough_u) const {
    if (params_.top_k > 0 && params_.top_k < row_.size()) {
      std::vector<Entry> entries = Select::Largest(row_, params_.top_k);
      if (entries.back().value > -Select::kInf) Select::AppendTies(row_, &entries);
      std::vector<Candidate> pool = Weigh(entries);
      Close(pool.back().cumulative, 2.0, &pool);
      return pool;
    }
    const double total = Total();
    for (std::int64_t n = 64;; n *= 16) {
      std::vector<Candidate> prefix = Weigh(Select::Largest(row_, n));
      const bool whole = static_cast<std::int64_t>(prefix.size()) < n || n >= row_.size();
      if (Close(total, enough_u, &prefix) || whole) return prefix;
    }
  }

  bool HasFilter() const {
    return (params_.top_k > 0 && params_.top_k < row_.size()) || params_.top_p < 1.0f || params_.min_p > 0.0f;
  }

  Vec Weights(Vec logits) const { return Exp((logits - Vec::Set1(max_.value)) / Vec::Set1(params_.temperature)); }

  // Sum of all weights: each block over 16 lanes and the fixed tree, the blocks in f64.
  double Total() const {
    double total = 0;
    for (std::int64_t block = 0; block < row_.size(); block += Select::kBlock) {
      Vec sum = Vec::Zero();
      for (std::int64_t i = block; i < std::min(row_.size(), block + Select::kBlock); i += Vec::kLanes) {
        if (!row_.Skips(i)) sum = sum + Weights(row_.Load(i));  // the weights of skipped elements are 0
      }
      total += static_cast<double>(sum.ReduceSum());
    }
    return total;
  }

  std::vector<Candidate> Weigh(const std::vector<Entry>& entries) const {
    std::vector<Candidate> out;
    out.reserve(entries.size());
    double cumulative = 0;
    for (std::size_t begin = 0; begin < entries.size(); begin += Vec::kLanes) {
      const std::size_t n = std::min<std::size_t>(Vec::kLanes, entries.size() - begin);
      float lanes[Vec::kLanes] = {};
      for (std::size_t i = 0; i < n; ++i) lanes[i] = entries[begin + i].value;
      Weights(Vec::Load(lanes)).Store(lanes);
      for (std::size_t i = 0; i < n; ++i) {
        cumulative += static_cast<double>(lanes[i]);
        out.push_back({entries[begin + i].id, lanes[i], cumulative});
      }
    }
    return out;
  }

  // Cuts the descending list where a filter or enough_u (see Candidates) ends the list. Returns whether the list ended:
  // then a longer prefix would change nothing.
  bool Close(double total, double enough_u, std::vector<Candidate>* list) const {
    const double top_p_mass = static_cast<double>(params_.top_p) * total;
    for (std::size_t i = 1; i < list->size(); ++i) {
      const Candidate& c = (*list)[i];
      const double before = (*list)[i - 1].cumulative;
      if (c.weight == 0.0f || c.weight < params_.min_p || (params_.top_p < 1.0f && before >= top_p_mass) ||
          before > enough_u * total) {
        list->resize(i);
        return true;
      }
    }
    return false;
  }

  const Row row_;
  const SampleParams& params_;
  typename Select::RowMax max_;
};

template <typename Vec, typename Row>
std::int32_t DrawFrom(const Row& logits, const SampleParams& params) {
  const RowSampler<Vec, Row> sampler(logits, params);
  return sampler.usable() ? sampler.Draw() : -1;
}

template <typename Vec>
LaunchResult SampleVec(const SampleArgs& args, const Stream& stream) {
  stream.ParallelFor(args.logits.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const WholeRow<Vec> row(static_cast<const float*>(args.logits.data) + t * args.logits.stride, args.logits.cols);
      args.token[t] = args.allowed == nullptr
                          ? DrawFrom<Vec>(row, args.params[t])
                          : DrawFrom<Vec>(MaskedRow<Vec>(row, args.AllowedWords(t)), args.params[t]);
    }
  });
  return {};
}

}  // namespace nibble::kernels
