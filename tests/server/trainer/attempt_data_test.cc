#include "server/trainer/attempt_data.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "server/data/token_writer.h"
#include "server/plan/check_job.h"
#include "server/store/published_directory.h"
#include "tests/support/temp_directory.h"

namespace nibble::trainer {
namespace {

constexpr char kModel[] = NIBBLE_SOURCE_DIR "/tests/golden/model/hf_tied_bf16";

// Provides only the directory of the text; the tests need nothing else of a recipe.
class TextRecipe final : public Recipe {
 public:
  TextRecipe() { config_.eos_token_ids = {1}; }
  TrainingModel& model() override { std::abort(); }
  const model::ModelConfig& config() const override { return config_; }
  std::int64_t max_positions() const override { return 128; }
  const std::string& text_directory() const override { return directory_; }
  const std::string& base_digest() const override { return directory_; }
  absl::StatusOr<model::ArtifactInfo> Write(const base::Json&, const std::string&) override { return absl::UnimplementedError(""); }
  model::Format served_format() const override { return model::Format::kInt8; }
  absl::StatusOr<model::Record> MakeRecord(const model::LoadedModel&, const std::vector<std::vector<std::int32_t>>&) override {
    return absl::UnimplementedError("");
  }

 private:
  model::ModelConfig config_;
  const std::string directory_ = kModel;
};

class AttemptDataTest : public ::testing::Test {
 protected:
  AttemptDataTest() {
    std::string pairs;
    for (int i = 0; i < 40; ++i) {
      pairs += "{\"prompt\": \"walk t\", \"completion\": \"he keeper " + std::string(static_cast<std::size_t>(i * 3), 'x') + "\"}\n";
    }
    std::ofstream(temp_ / "pairs.jsonl") << pairs;
    std::ofstream(temp_ / "text.jsonl") << "{\"text\": \"the light\"}\n{\"text\": \"the harbour\"}\n";
    order_.spec.base_model = "base";
    order_.spec.train_dataset = "pairs";
    order_.spec.eval_dataset = "text";
    order_.spec.data.max_seq_len = 32;
    order_.spec.data.shuffle_seed = 5;
    order_.spec = jobs::Resolve(order_.spec, "job-1", "prompt_completion", "cpu");
    order_.train_data_path = temp_ / "pairs.jsonl";
    order_.eval_data_path = temp_ / "text.jsonl";
    order_.eval_format = "text";
  }
  absl::StatusOr<AttemptData> Load() {
    return LoadAttemptData(base::RealFileSystem(), order_, recipe_, {.isa = kernels::Isa::kPlain, .pool = &pool_}, {});
  }
  // The token sources with which nibbled plans, and for which it writes token files.
  std::vector<data::TokenSource> Planned() {
    plan::JobInputs inputs;
    inputs.config = recipe_.config();
    inputs.text = *model::LoadTextAssets(kModel);
    inputs.train.path = order_.train_data_path;
    inputs.train.format = "prompt_completion";
    inputs.train.sha256 = store::HashFile(order_.train_data_path)->sha256;
    inputs.train.tokens_directory = temp_ / "tokens/pairs";
    inputs.eval.path = order_.eval_data_path;
    inputs.eval.format = "text";
    inputs.eval.sha256 = store::HashFile(order_.eval_data_path)->sha256;
    inputs.eval.tokens_directory = temp_ / "tokens/text";
    return *plan::TokenSourcesOf(order_.spec, inputs);
  }
  void ExpectSameBatches(const AttemptData& got, const AttemptData& want) {
    const auto a = MakeLoader(order_.spec, got), b = MakeLoader(order_.spec, want);
    EXPECT_EQ(a->RowsInEpoch(0), b->RowsInEpoch(0));
    while (b->cursor().epoch < 3) {
      const data::MicroBatch x = a->Next(2), y = b->Next(2);
      ASSERT_EQ(x.tokens, y.tokens);
      ASSERT_EQ(x.targets, y.targets);
      ASSERT_EQ(x.segments, y.segments);
      ASSERT_EQ(x.rows, y.rows);
    }
    ASSERT_EQ(got.eval.examples.size(), want.eval.examples.size());
    for (std::size_t i = 0; i < want.eval.examples.size(); ++i) EXPECT_EQ(got.eval.examples[i].tokens, want.eval.examples[i].tokens);
    EXPECT_EQ(got.train.boundary_merged.lines, want.train.boundary_merged.lines);
    EXPECT_EQ(got.train.truncated.count, want.train.truncated.count);
    EXPECT_EQ(got.identity.data_digest, want.identity.data_digest);
  }

  testing::TempDirectory temp_;
  kernels::ThreadPool pool_{3};
  TextRecipe recipe_;
  jobs::AttemptOrder order_;
};

// T7 (docs/faults.md)
TEST_F(AttemptDataTest, BatchesAreTheSameWithAndWithoutTokenFiles) {
  const auto memory = Load();  // the order of an older server names no directory
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->identity.data_digest, store::HashFile(order_.train_data_path)->sha256);
  order_.train_tokens_directory = temp_ / "tokens/pairs";
  order_.eval_tokens_directory = temp_ / "tokens/text";
  for (const char* attempt : {"makes the files", "reads them"}) {
    SCOPED_TRACE(attempt);
    const auto mapped = Load();
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    ExpectSameBatches(*mapped, *memory);
  }
}

TEST_F(AttemptDataTest, ReadsTheFilesThatThePlannerWrote) {
  const auto memory = Load();
  ASSERT_TRUE(memory.ok()) << memory.status();
  order_.train_tokens_directory = temp_ / "tokens/pairs";
  order_.eval_tokens_directory = temp_ / "tokens/text";
  std::vector<std::pair<std::string, std::filesystem::file_time_type>> made;
  for (const data::TokenSource& source : Planned()) {
    ASSERT_TRUE(data::LoadTokens(base::RealFileSystem(), source, {.threads = 3}).ok());
    const std::string path = data::TokenFilePath(source.tokens_directory, data::TokenKey(source));
    std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
    made.emplace_back(path, std::filesystem::last_write_time(path));
  }
  const auto mapped = Load();
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  ExpectSameBatches(*mapped, *memory);
  for (const auto& [path, time] : made) {
    EXPECT_EQ(std::filesystem::last_write_time(path), time) << "the file was not rewritten";
    const auto directory = std::filesystem::path(path).parent_path();
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory), std::filesystem::directory_iterator()), 1);
  }
}

TEST_F(AttemptDataTest, DamagedFileIsRewritten) {
  const auto memory = Load();
  ASSERT_TRUE(memory.ok()) << memory.status();
  order_.train_tokens_directory = temp_ / "tokens/pairs";
  ASSERT_TRUE(Load().ok());
  const auto path = std::filesystem::directory_iterator(order_.train_tokens_directory)->path();
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(100);  // a token; the index is intact
  file.put('\x7f');
  file.close();
  const auto mapped = Load();
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  ExpectSameBatches(*mapped, *memory);
}

TEST_F(AttemptDataTest, TokenizesInMemoryIfNoFileCanBeWritten) {
  const auto memory = Load();
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::ofstream(temp_ / "tokens") << "a file, where the directory should be";
  order_.train_tokens_directory = temp_ / "tokens/pairs";
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ExpectSameBatches(*loaded, *memory);
}

}  // namespace
}  // namespace nibble::trainer
