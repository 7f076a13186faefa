#include "server/data/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "kernels/ops/attention/rope.h"
#include "kernels/ops/matmul/matmul_library.h"
#include "server/base/error.h"
#include "server/model/forward.h"
#include "tests/support/random.h"

namespace nibble::data {
namespace {

using support::NormalVector;

// A plain matrix product. Two instances that sum in opposite orders stand for the libraries of two programs.
class PlainLibrary : public kernels::DenseLibrary {
 public:
  explicit PlainLibrary(bool backwards) : backwards_(backwards) {}
  const char* kernel_name() const override { return "test:matmul"; }
  absl::Status Matmul(const kernels::ConstMatrix& x, const kernels::ConstMatrix& w, const kernels::Matrix& y, bool,
                      const kernels::Stream&) override {
    const auto at = [](const kernels::ConstMatrix& m, std::int64_t r, std::int64_t c) {
      return m.dtype == kernels::DType::kF32 ? m.Row<float>(r)[c] : kernels::ToFloat(m.Row<kernels::BF16>(r)[c]);
    };
    for (std::int64_t m = 0; m < x.rows; ++m) {
      for (std::int64_t n = 0; n < w.rows; ++n) {
        float sum = 0;
        for (std::int64_t k = 0; k < x.cols; ++k) {
          const std::int64_t i = backwards_ ? x.cols - 1 - k : k;
          sum += at(x, m, i) * at(w, n, i);
        }
        y.Row<float>(m)[n] = sum;
      }
    }
    return absl::OkStatus();
  }

 private:
  bool backwards_;
};

// Two layers of random weights, linears in NF4 with an adapter, a float head.
class EvaluateTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kPositions = 700;
  static constexpr std::int64_t kRank = 4;

  EvaluateTest() {
    config_.hidden_size = 64;
    config_.num_layers = 2;
    config_.num_heads = 4;
    config_.num_kv_heads = 2;
    config_.head_dim = 16;
    config_.ffn_size = 128;
    config_.vocab_size = 97;
    config_.max_positions = kPositions;
    config_.rms_norm_eps = 1e-5;
    config_.tied_embeddings = true;
    weights_.embedding = Floats(config_.vocab_size, 64, 1.0f);
    weights_.head.library = weights_.embedding;
    ones_.assign(128, 1.0f);
    weights_.final_norm = ones_.data();
    const std::vector<float> frequencies = NormalVector(3, 8);
    cos_.resize(kPositions * 8);
    sin_.resize(kPositions * 8);
    kernels::FillRopeTable(frequencies.data(), 8, 0, kPositions, cos_.data(), sin_.data());
    weights_.rope_cos = cos_.data();
    weights_.rope_sin = sin_.data();
    weights_.rope_positions = kPositions;
    weights_.input_dtype = kernels::DType::kBF16;
    weights_.kv_dtype = kernels::DType::kBF16;
    for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
      model::LayerWeights made;
      SetNorms(made);
      for (int k = 0; k < model::kNumLinearKinds; ++k)
        made.linears[static_cast<std::size_t>(k)] = Linear(static_cast<model::LinearKind>(k));
      weights_.layers.push_back(std::move(made));
    }
    for (const std::int64_t size : {40, 7, 600, 12, 120, 3}) {
      Example example;
      for (std::int64_t i = 0; i < size; ++i) {
        example.tokens.push_back(
            static_cast<std::int32_t>(support::UniformInt(9, static_cast<std::uint64_t>(size * 1000 + i), 97)));
        example.trained.push_back(size != 3 && i % 3 != 0 ? 1 : 0);
      }
      examples_.push_back(std::move(example));
    }
  }

  void SetNorms(model::LayerWeights& layer) {
    layer.norms[static_cast<std::size_t>(model::Norm::kInput)] = ones_.data();
    layer.norms[static_cast<std::size_t>(model::Norm::kPostAttention)] = ones_.data();
  }

  kernels::ConstMatrix Floats(std::int64_t rows, std::int64_t cols, float scale) {
    memory_.push_back(std::make_unique<std::vector<float>>(NormalVector(++seed_, rows * cols, scale)));
    return kernels::MakeConstMatrix(memory_.back()->data(), kernels::DType::kF32, rows, cols);
  }

  kernels::PackedDenseWeight Panels(std::int64_t rows, std::int64_t cols) {
    const kernels::ConstMatrix values = Floats(rows, cols, 0.1f);
    memory_.push_back(
        std::make_unique<std::vector<float>>(static_cast<std::size_t>(kernels::PackedDenseElements(rows, cols))));
    kernels::PackDenseWeight(values.data, kernels::DType::kF32, rows, cols, memory_.back()->data());
    return {memory_.back()->data(), kernels::DType::kF32, rows, cols};
  }

  model::LinearWeight Linear(model::LinearKind kind) {
    const std::int64_t n = model::OutFeatures(config_, kind);
    const std::int64_t k = model::InFeatures(config_, kind);
    model::LinearWeight linear;
    linear.kind = model::LinearWeight::Kind::kNf4;
    codes_.push_back(std::make_unique<std::vector<std::uint8_t>>(static_cast<std::size_t>(n * k / 2)));
    for (std::size_t i = 0; i < codes_.back()->size(); ++i)
      (*codes_.back())[i] = static_cast<std::uint8_t>(support::Bits(++seed_, i));
    memory_.push_back(std::make_unique<std::vector<float>>(static_cast<std::size_t>(n * k / 64), 0.2f));
    linear.nf4 = {codes_.back()->data(), memory_.back()->data(), n, k};
    linear.lora = model::LoraWeight{Panels(kRank, k), Panels(n, kRank), 2.0f};
    return linear;
  }

  absl::StatusOr<Evaluation> Run(const EvaluateOptions& options = {}) {
    return Evaluate(config_, weights_, examples_, options, stream_, [](std::int64_t) { return true; });
  }

  std::vector<std::unique_ptr<std::vector<float>>> memory_;
  std::vector<std::unique_ptr<std::vector<std::uint8_t>>> codes_;
  std::vector<float> ones_, cos_, sin_;
  std::uint64_t seed_ = 100;
  model::ModelConfig config_;
  model::DecoderWeights weights_;
  std::vector<Example> examples_;
  PlainLibrary forwards_{/*backwards=*/false};
  PlainLibrary backwards_{/*backwards=*/true};
  kernels::Stream stream_ = {.library = &forwards_};
};

TEST_F(EvaluateTest, LossIsTheMeanOverTrainedTokensOfSeparateExamples) {
  double sum = 0;
  std::int64_t count = 0;
  std::vector<std::int32_t> likeliest;
  for (const Example& example : examples_) {
    const auto status = model::ForEachLogits(
        config_, weights_, example.tokens, 700, stream_, [&](std::int64_t, const kernels::Matrix& logits) {
          for (std::size_t t = 0; t + 1 < example.tokens.size(); ++t) {
            if (example.trained[t + 1] == 0) continue;
            const float* row = logits.Row<float>(static_cast<std::int64_t>(t));
            double exps = 0;
            std::int32_t best = 0;
            for (std::int32_t v = 0; v < 97; ++v) {
              exps += std::exp(static_cast<double>(row[v]));
              if (row[v] > row[best]) best = v;
            }
            sum += std::log(exps) - static_cast<double>(row[example.tokens[t + 1]]);
            likeliest.push_back(best);
            ++count;
          }
          return absl::OkStatus();
        });
    ASSERT_TRUE(status.ok()) << status;
  }
  const auto got = Run({.top_tokens = true});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->tokens, count);
  EXPECT_EQ(got->top_tokens, likeliest);
  EXPECT_NEAR(got->loss, sum / static_cast<double>(count), 1e-5);
}

// The trainer's library is torch and nibbled's is oneDNN. Adapter products are ours in both, so the hidden states are
// equal and only the head's sums differ. When the library computed the adapter products, a different bf16 rounding in
// the first layer changed the mean loss by 1e-4 to 3e-3.
TEST_F(EvaluateTest, Nf4WithAnAdapterHardlyDependsOnTheLibrary) {
  const auto one = Run();
  stream_.library = &backwards_;
  const auto other = Run();
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_NEAR(one->loss, other->loss, 1e-6);
}

TEST_F(EvaluateTest, NoExampleStartsAfterMaxTokens) {
  const auto got = Run({.max_tokens = 27});
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->tokens, examples_[0].num_trained() + examples_[1].num_trained());
}

TEST_F(EvaluateTest, CanBeCancelledAndRefusesDataWithoutTrainedTokens) {
  const auto stopped = Evaluate(config_, weights_, examples_, {}, stream_, [](std::int64_t done) { return done < 30; });
  EXPECT_EQ(stopped.status().code(), absl::StatusCode::kCancelled);
  // A cancel in the second layer of the first step is noticed, too.
  int asked = 0;
  const auto in_a_layer =
      Evaluate(config_, weights_, examples_, {}, stream_, [&](std::int64_t) { return ++asked < 2; });
  EXPECT_EQ(in_a_layer.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(asked, 2);
  for (Example& example : examples_) example.trained.assign(example.trained.size(), 0);
  const auto none = Run();
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(base::Reason(none.status()), "NO_TRAINABLE_TOKENS");
}

TEST_F(EvaluateTest, ExampleLongerThanTheModelIsRefused) {
  examples_[2].tokens.resize(kPositions + 1, 1);
  examples_[2].trained.resize(kPositions + 1, 1);
  const auto got = Run();
  EXPECT_EQ(got.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(got.status().message()).find("701"), std::string::npos) << got.status();
}

}  // namespace
}  // namespace nibble::data
