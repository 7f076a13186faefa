#include "server/trainer/attempt_data.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "server/base/json.h"
#include "server/data/token_writer.h"
#include "server/plan/check_job.h"
#include "server/store/published_directory.h"
#include "tests/server/data/tokenizing_threads.h"
#include "tests/support/temp_directory.h"

namespace nibble::trainer {
namespace {

constexpr char kModel[] = NIBBLE_SOURCE_DIR "/tests/golden/model/hf_tied_bf16";

// Provides the config, the position limit and the tokenizer's directory: LoadAttemptData uses nothing else that depends
// on the model.
class TextRecipe final : public Recipe {
 public:
  TextRecipe() { config_.eos_token_ids = {1}; }
  TrainingModel& model() override { std::abort(); }
  const model::ModelConfig& config() const override { return config_; }
  std::int64_t max_positions() const override { return 128; }
  const std::string& text_directory() const override { return directory_; }
  void set_text_directory(const std::string& directory) { directory_ = directory; }
  const std::string& base_digest() const override { return directory_; }  // any text will do
  absl::StatusOr<model::ArtifactInfo> Write(const base::Json&, const std::string&) override {
    return absl::UnimplementedError("");
  }
  model::Format served_format() const override { return model::Format::kInt8; }
  absl::StatusOr<model::Record> MakeRecord(const model::LoadedModel&,
                                           const std::vector<std::vector<std::int32_t>>&) override {
    return absl::UnimplementedError("");
  }

 private:
  model::ModelConfig config_;
  std::string directory_ = kModel;
};

class AttemptDataTest : public ::testing::Test {
 protected:
  AttemptDataTest() {
    std::string pairs;
    for (int i = 0; i < 40; ++i) {
      pairs += "{\"prompt\": \"walk t\", \"completion\": \"he keeper " +
               std::string(static_cast<std::size_t>(i * 3), 'x') + "\"}\n";
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
  absl::StatusOr<AttemptData> Load(const base::Cancelled& cancelled = {}) {
    return LoadAttemptData(base::RealFileSystem(), order_, recipe_, {.isa = kernels::Isa::kPlain, .pool = &pool_},
                           cancelled);
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
    for (std::size_t i = 0; i < want.eval.examples.size(); ++i)
      EXPECT_EQ(got.eval.examples[i].tokens, want.eval.examples[i].tokens);
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
  const auto memory = Load();  // without directories for token files, as in the order of an older server
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
  file.seekp(100);  // a token, after the header of 80 bytes; the index is intact
  file.put('\x7f');
  file.close();
  const auto mapped = Load();
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  ExpectSameBatches(*mapped, *memory);
  std::ifstream rewritten(path, std::ios::binary);
  rewritten.seekg(100);
  EXPECT_NE(rewritten.get(), 0x7f) << "no token id has this byte";
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

TEST_F(AttemptDataTest, TokenizesOnTheThreadsOfItsPool) {
  std::ofstream text(order_.train_data_path);
  for (int i = 0; i < 10'000; ++i)
    text << R"({"prompt": "walk t", "completion": "he keeper )" << std::string(100, 'x') << "\"}\n";
  text.close();
  order_.train_tokens_directory = temp_ / "tokens/pairs";
  data::TokenizingThreads threads;
  const auto loaded = Load(threads.Cancelled());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(threads.others_worked());
}

// T9 (docs/faults.md)
TEST_F(AttemptDataTest, AddSpecialTokensDecidesWhetherTokensAreAdded) {
  std::ifstream in(std::string(kModel) + "/tokenizer.json");
  base::Json tokenizer = base::Json::parse(in);
  tokenizer["post_processor"] = base::Json::parse(
      R"({"type": "TemplateProcessing",
          "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
          "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
          "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}})");
  std::filesystem::create_directory(temp_ / "text");
  std::ofstream(temp_ / "text/tokenizer.json") << tokenizer;
  recipe_.set_text_directory(temp_ / "text");
  for (const bool with_files : {false, true}) {
    if (with_files) order_.train_tokens_directory = order_.eval_tokens_directory = temp_ / "tokens";
    for (const std::optional<bool> add :
         {std::optional<bool>(), std::optional<bool>(true), std::optional<bool>(false)}) {
      order_.spec.data.add_special_tokens = add;
      const auto loaded = Load();
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      for (const data::ExampleList* examples : {&loaded->train.examples, &loaded->eval.examples}) {
        ASSERT_GT(examples->size(), 0u);
        for (std::size_t i = 0; i < examples->size(); ++i) {
          const data::Example example = (*examples)[i];
          EXPECT_EQ(example.tokens.front() == 0, add.value_or(true))
              << "example " << i << (with_files ? " of a file" : " in memory");
        }
      }
    }
  }
}

}  // namespace
}  // namespace nibble::trainer
