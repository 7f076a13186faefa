#include "server/model/forward.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "server/model/record.h"
#include "tests/server/model/small_models.h"
#include "tests/support/plain_library.h"

namespace nibble::model {
namespace {

std::vector<std::int32_t> Tokens(int count, int first) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((first + i * 11) % 112);
  return tokens;
}

class ForwardTest : public testing::Test {
 protected:
  // The digest of each row of logits of one sequence.
  std::vector<std::string> Digests(const LoadedModel& model, const std::vector<std::int32_t>& tokens,
                                   std::int64_t chunk) {
    std::vector<std::string> digests;
    const absl::Status status = ForEachLogits(model.config(), model.weights(), tokens, chunk, models_.stream(),
                                              [&](std::int64_t first, const kernels::Matrix& rows) {
                                                EXPECT_EQ(first, static_cast<std::int64_t>(digests.size()));
                                                for (std::int64_t r = 0; r < rows.rows; ++r)
                                                  digests.push_back(RowDigest(rows.Row<float>(r), rows.cols));
                                                return absl::OkStatus();
                                              });
    EXPECT_TRUE(status.ok()) << status;
    return digests;
  }
  SmallModels models_;
};

// The formats that are exact: equal in every bit, for any batch.
class ExactForwardTest : public ForwardTest, public testing::WithParamInterface<std::string> {
 protected:
  std::shared_ptr<const LoadedModel> Load() {
    return models_.Load(GetParam() == "int8"      ? models_.int8()
                        : GetParam() == "ternary" ? models_.ternary()
                                                  : models_.weight_only());
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, ExactForwardTest, testing::Values("int8", "weight_only", "ternary"),
                         [](const auto& format) { return format.param; });

TEST_P(ExactForwardTest, EveryChunkSizeGivesTheSameBits) {
  const auto model = Load();
  const auto tokens = Tokens(70, 3);
  const auto whole = Digests(*model, tokens, 70);
  ASSERT_EQ(whole.size(), tokens.size());
  for (const std::int64_t chunk : {1, 5, 16, 64}) EXPECT_EQ(Digests(*model, tokens, chunk), whole) << chunk;
}

// Rows of two sequences in one step, one at its beginning and one in its middle, get the same bits as alone.
TEST_P(ExactForwardTest, MixedStepGivesEachSequenceItsOwnBits) {
  const auto model = Load();
  const auto a = Tokens(20, 3), b = Tokens(9, 50);
  const auto alone_a = Digests(*model, a, 20), alone_b = Digests(*model, b, 9);
  const auto pool = KvPool::Create(model->config(), model->weights().kv_dtype, 8);
  ASSERT_TRUE(pool.ok()) << pool.status();
  std::vector<std::int32_t> pages_a, pages_b;
  ASSERT_TRUE((*pool)->Allocate(2, &pages_a));
  ASSERT_TRUE((*pool)->Allocate(2, &pages_b));
  Arena arena;
  const auto step = [&](int from_a, int to_a, int from_b, int to_b) {
    std::vector<std::int32_t> tokens, sequence, position, wanted, tables = pages_a;
    tables.insert(tables.end(), pages_b.begin(), pages_b.end());
    const auto add = [&](const std::vector<std::int32_t>& of, int from, int to, int number) {
      for (int i = from; i < to; ++i) {
        wanted.push_back(static_cast<std::int32_t>(tokens.size()));
        tokens.push_back(of[static_cast<std::size_t>(i)]);
        sequence.push_back(number);
        position.push_back(i);
      }
    };
    add(a, from_a, to_a, 0);
    add(b, from_b, to_b, 1);
    arena.Release({});
    const auto logits = RunStep(model->config(), model->weights(), (*pool)->view(),
                                {.tokens = tokens,
                                 .kv = {.num_rows = static_cast<std::int64_t>(tokens.size()),
                                        .sequence = sequence.data(),
                                        .position = position.data(),
                                        .page_tables = tables.data(),
                                        .num_sequences = 2,
                                        .pages_per_sequence = 2},
                                 .logit_rows = wanted},
                                arena, models_.stream());
    ASSERT_TRUE(logits.ok()) << logits.status();
    std::int64_t row = 0;
    for (int i = from_a; i < to_a; ++i) {
      EXPECT_EQ(RowDigest(logits->Row<float>(row++), logits->cols), alone_a[static_cast<std::size_t>(i)]) << "a " << i;
    }
    for (int i = from_b; i < to_b; ++i) {
      EXPECT_EQ(RowDigest(logits->Row<float>(row++), logits->cols), alone_b[static_cast<std::size_t>(i)]) << "b " << i;
    }
  };
  step(0, 12, 0, 0);
  step(12, 13, 0, 8);
  step(13, 20, 8, 9);
}

// Both models have the same codes; the weight-only model does not round rows to int8.
TEST_F(ForwardTest, WeightOnlyModelIsNearerToItsSourceThanTheInt8Model) {
  const auto tokens = Tokens(100, 7);
  support::PlainLibrary library;
  kernels::Stream stream = models_.stream();
  stream.library = &library;  // the bf16 model needs it
  const auto logits = [&](const std::string& path) {
    std::vector<float> all;
    const auto model = models_.Load(path);
    const absl::Status done = ForEachLogits(
        model->config(), model->weights(), tokens, 100, stream, [&](std::int64_t, const kernels::Matrix& rows) {
          for (std::int64_t r = 0; r < rows.rows; ++r) {
            all.insert(all.end(), rows.Row<float>(r), rows.Row<float>(r) + rows.cols);
          }
          return absl::OkStatus();
        });
    EXPECT_TRUE(done.ok()) << done;
    return all;
  };
  const std::vector<float> source = logits(models_.bf16());
  const auto distance = [&](const std::vector<float>& of) {
    double sum = 0;
    for (std::size_t i = 0; i < of.size(); ++i) sum += std::pow(static_cast<double>(of[i]) - source[i], 2);
    return sum;
  };
  const double int8 = distance(logits(models_.int8())), weight_only = distance(logits(models_.weight_only()));
  EXPECT_GT(weight_only, 0);
  EXPECT_LT(weight_only, int8);
}

TEST_F(ForwardTest, RejectsMoreTokensThanPositions) {
  const auto model = models_.Load(models_.bf16());
  const auto tokens = Tokens(257, 0);
  const absl::Status status = ForEachLogits(model->config(), model->weights(), tokens, 64, models_.stream(),
                                            [](std::int64_t, const kernels::Matrix&) { return absl::OkStatus(); });
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

TEST_F(ForwardTest, VisitorErrorEndsTheRun) {
  const auto model = models_.Load(models_.int8());
  int calls = 0;
  const absl::Status status = ForEachLogits(model->config(), model->weights(), Tokens(40, 0), 8, models_.stream(),
                                            [&](std::int64_t, const kernels::Matrix&) {
                                              return ++calls == 2 ? absl::CancelledError("enough") : absl::OkStatus();
                                            });
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace nibble::model
