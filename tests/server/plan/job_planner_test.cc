#include "server/plan/job_planner.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "server/base/sha256.h"
#include "tests/server/model/files.h"
#include "tests/support/temp_directory.h"

namespace nibble::plan {
namespace {

// C2 (docs/faults.md): the token cache asks for the names of every open job's token files while it is locked, so the
// planner must answer without the slow reading of a tokenizer.
TEST(JobPlannerTest, NamesTheTokenFilesOfAJobWithoutReadingATokenizer) {
  nibble::testing::TempDirectory temp;
  auto state = store::StateDirectory::Open(base::RealFileSystem(), temp / "state", {.min_free_bytes = 0});
  ASSERT_TRUE(state.ok()) << state.status();
  auto model = (*state)->models->Begin("base");
  ASSERT_TRUE(model.ok());
  for (const char* file : {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    std::filesystem::copy(model::Golden("hf_tied_bf16/") + file, (*model)->directory() + "/" + file);
  }
  ASSERT_TRUE((*model)->Commit().ok());
  for (const char* name : {"train", "eval"}) {
    auto dataset = (*state)->datasets->Begin(name);
    ASSERT_TRUE((*dataset)->Append(name).ok());
    const auto validate = [](const std::string&) { return base::ParseJson(R"({"format":"text"})"); };
    ASSERT_TRUE((*dataset)->Finish(base::Sha256Hex(name), validate).ok());
  }
  const std::string trainer_path = "nibble-trainer";
  data::TokenCache tokens(base::RealFileSystem(), (*state)->paths.tokens(), /*threads=*/1, {});
  registry::TextCacheOptions options;
  options.read = [](const std::string&) -> absl::StatusOr<model::TextAssets> {
    return absl::InternalError("was read");
  };
  registry::TextCache texts(*(*state)->models, options);
  const JobPlanner planner(/*train_bytes=*/0, trainer_path, **state, texts, tokens, base::MemoryBudget::Make(0));

  jobs::JobSpec spec;
  spec.base_model = "base";
  spec.train_dataset = "train";
  spec.eval_dataset = "eval";
  const auto files = planner.TokenFiles(spec);
  ASSERT_TRUE(files.ok()) << files.status();

  // The names that the job's attempts use.
  registry::TextCache reading(*(*state)->models);
  const auto text = reading.Get("base");
  ASSERT_TRUE(text.ok()) << text.status();
  plan::JobInputs inputs;
  inputs.config = (*text)->config;
  inputs.text = (*text)->assets;
  inputs.train.format = "text";
  inputs.train.sha256 = base::Sha256Hex("train");
  inputs.train.tokens_directory = (*state)->paths.tokens("train");
  inputs.eval.path = "eval";
  inputs.eval.sha256 = base::Sha256Hex("eval");
  inputs.eval.tokens_directory = (*state)->paths.tokens("eval");
  const auto sources = plan::TokenSourcesOf(spec, inputs);
  ASSERT_TRUE(sources.ok()) << sources.status();
  ASSERT_EQ(files->size(), sources->size());
  for (std::size_t i = 0; i < sources->size(); ++i) {
    EXPECT_EQ((*files)[i], data::TokenFilePath((*sources)[i].tokens_directory, data::TokenKey((*sources)[i])));
  }
}

}  // namespace
}  // namespace nibble::plan
