#include "server/model/loaded_model.h"

#include <gmock/gmock.h>

#include "server/model/tensor_table.h"
#include "tests/server/model/small_models.h"
#include "tests/support/cancel_at.h"

namespace nibble::model {
namespace {

using testing::HasSubstr;

class LoadedModelTest : public testing::Test {
 protected:
  absl::Status LoadStatus(const std::string& path) { return LoadedModel::Load(path, {}, models_.stream()).status(); }
  // Copies an artifact, so that a test can modify its tensors file.
  std::string Copy(const std::string& path) {
    const std::string copy = models_.Path("copy");
    std::filesystem::remove_all(copy);
    std::filesystem::copy(path, copy, std::filesystem::copy_options::recursive);
    return copy;
  }
  SmallModels models_;
};

TEST_F(LoadedModelTest, LoadsBf16Int8Nf4AndTernary) {
  for (const std::string& path :
       {models_.bf16(), models_.int8(), models_.weight_only(), models_.nf4(), models_.ternary()}) {
    const auto model = models_.Load(path);
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(model->config().num_layers, 2);
    EXPECT_EQ(model->info().weights_digest.size(), 64u);
    EXPECT_GT(model->resident_bytes(), 0u);
    EXPECT_EQ(model->max_positions(), 256) << "the model's own limit";
  }
}

// resident_bytes() counts each buffer of the model once, and each mapped tensor that is read in place once. A tied
// embedding is also the head; a ternary model has a second, packed copy of it for the head.
TEST_F(LoadedModelTest, ResidentBytesCountEachTensorOnce) {
  // Allocated buffers have at least 64 bytes.
  const auto own = [](std::int64_t bytes) { return std::max<std::int64_t>(bytes, 64); };
  const auto codes = [&](Format format, std::int64_t n, std::int64_t k) {
    const std::int64_t scales = own(4 * kernels::RoundUp(n, 16));
    switch (format) {
      case Format::kInt8: return own(kernels::PackedInt8Bytes(n, k)) + 2 * scales;  // and the sums of rows
      case Format::kNf4: return n * kernels::Nf4RowBytes(k) + own(4 * n * kernels::Nf4RowBlocks(k, kernels::kNf4Block));
      case Format::kTernary: return own(kernels::PackedTernaryBytes(n, k)) + scales;
      default: return 2 * n * k;
    }
  };
  for (const std::string& path :
       {models_.bf16(), models_.int8(), models_.weight_only(), models_.nf4(), models_.ternary()}) {
    const auto model = models_.Load(path);
    ASSERT_NE(model, nullptr);
    const Format format = model->info().format;
    ASSERT_TRUE(model->config().tied_embeddings);
    std::int64_t want = 2 * own(4 * model->max_positions() * model->config().head_dim / 2);  // the rope table
    for (const TensorSpec& tensor : RequiredTensors(model->config())) {
      switch (tensor.role) {
        case TensorRole::kLinear: want += codes(format, tensor.shape[0], tensor.shape[1]); break;
        case TensorRole::kEmbedding:
          want += format == Format::kInt8 ? codes(format, tensor.shape[0], tensor.shape[1])
                                          : 2 * tensor.shape[0] * tensor.shape[1];
          if (format == Format::kTernary)
            want += own(2 * kernels::PackedDenseElements(tensor.shape[0], tensor.shape[1]));
          break;
        default: want += own(4 * tensor.shape[0]);
      }
    }
    EXPECT_EQ(model->resident_bytes(), static_cast<std::uint64_t>(want)) << Name(format);
  }
}

TEST_F(LoadedModelTest, OptionLimitsThePositions) {
  const auto model = LoadedModel::Load(models_.bf16(), {.max_positions = 100}, models_.stream());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->max_positions(), 100);
}

TEST_F(LoadedModelTest, ChecksForCancellationBeforeEveryLayer) {
  support::CancelAt cancel;
  const auto model = LoadedModel::Load(models_.nf4(), {.cancelled = cancel.callback()}, models_.stream());
  ASSERT_TRUE(model.ok()) << model.status();
  const int calls = cancel.calls();
  EXPECT_EQ(calls, (*model)->config().num_layers + 1) << "every layer and the head";
  for (int at = 1; at <= calls; ++at) {
    cancel.Restart(at);
    const auto stopped = LoadedModel::Load(models_.nf4(), {.cancelled = cancel.callback()}, models_.stream());
    EXPECT_EQ(stopped.status().code(), absl::StatusCode::kCancelled) << at;
  }
}

// Stored codes are never quantized again (docs/numerics.md 9).
TEST_F(LoadedModelTest, LoadingQuantizesNothing) {
  const std::string paths[] = {models_.int8(), models_.weight_only(), models_.nf4(), models_.ternary()};
  const auto before = models_.launches().Snapshot();
  for (const std::string& path : paths) models_.Load(path);
  const auto after = models_.launches().Snapshot();
  for (const char* kernel : {"quantize_int8", "quantize_nf4", "double_quantize", "ternarise"}) {
    const auto count = [&](const auto& counts) { return counts.contains(kernel) ? counts.at(kernel) : 0; };
    EXPECT_EQ(count(after), count(before)) << kernel;
  }
}

TEST_F(LoadedModelTest, RejectsCorruptFilesByName) {
  const std::string truncated = Copy(models_.int8());
  const std::string bytes = ReadBytes(truncated + "/model.safetensors");
  WriteBytes(truncated + "/model.safetensors", bytes.substr(0, bytes.size() - 8));
  absl::Status status = LoadStatus(truncated);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors"));

  const std::string renamed = Copy(models_.int8());
  std::string other = bytes;
  const std::string tensor = "model.layers.1.mlp.down_proj.weight_scale";
  const std::size_t at = other.find(tensor);
  ASSERT_NE(at, std::string::npos);
  other.replace(at, tensor.size(), "model.layers.1.mlp.down_proj.weight_scalX");
  WriteBytes(renamed + "/model.safetensors", other);
  status = LoadStatus(renamed);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("down_proj"));

  EXPECT_FALSE(LoadStatus(models_.Path("nothing")).ok());
}

}  // namespace
}  // namespace nibble::model
