#include "server/openai/fine_tuning_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/base/error.h"

namespace nibble::openai {
namespace {

using ::testing::MatchesRegex;

absl::StatusOr<FineTuningCall> Parse(const std::string& more, const std::string& key = "") {
  const auto body = base::ParseJson(R"({"model": "small", "training_file": "file-1")" + more + "}");
  EXPECT_TRUE(body.ok()) << body.status();
  return ParseFineTuningJob(*body, key);
}

v1::JobSpec Spec(const std::string& more, const std::string& key = "") {
  const auto call = Parse(more, key);
  EXPECT_TRUE(call.ok()) << more << ": " << call.status();
  return call.ok() ? call->request.spec() : v1::JobSpec();
}

std::string RefusedField(const std::string& more) {
  const auto call = Parse(more);
  if (call.ok()) return "";
  EXPECT_TRUE(absl::IsInvalidArgument(call.status())) << call.status();
  const std::string field = base::ReasonMetadata(call.status())["field"];
  EXPECT_THAT(std::string(call.status().message()), ::testing::StartsWith(field + ": "));
  return field;
}

TEST(FineTuningRequestTest, RequiredFieldsGiveAQLoraSpecWithDefaults) {
  const v1::JobSpec spec = Spec("");
  EXPECT_EQ(spec.base_model(), "small");
  EXPECT_EQ(spec.train_dataset(), "file-1");
  EXPECT_TRUE(spec.has_qlora());
  EXPECT_FALSE(spec.has_eval_dataset() || spec.has_run() || spec.has_optim() || spec.has_publish());
}

TEST(FineTuningRequestTest, FieldsBecomeTheSpec) {
  const v1::JobSpec spec = Spec(R"(, "validation_file": "file-2", "seed": 5, "metadata": {"team": "blue"},
      "hyperparameters": {"n_epochs": 3, "batch_size": 12, "learning_rate_multiplier": 0.5})");
  EXPECT_EQ(spec.eval_dataset(), "file-2");
  EXPECT_EQ(spec.run().seed(), 5);
  EXPECT_EQ(spec.labels().at("team"), "blue");
  EXPECT_EQ(spec.run().epochs(), 3);
  EXPECT_EQ(spec.run().micro_batch(), 4);
  EXPECT_EQ(spec.run().grad_accum(), 3);
  EXPECT_DOUBLE_EQ(spec.optim().lr(), 1e-4);
}

TEST(FineTuningRequestTest, BatchesAreSplitIntoEqualMicroBatches) {
  for (const auto& [batch, micro] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 2}, {3, 3}, {4, 4}, {6, 3}, {7, 1}, {65536, 4}}) {
    const v1::JobSpec spec = Spec(R"(, "hyperparameters": {"batch_size": )" + std::to_string(batch) + "}");
    EXPECT_EQ(spec.run().micro_batch(), micro) << batch;
    EXPECT_EQ(spec.run().micro_batch() * spec.run().grad_accum(), batch);
  }
}

TEST(FineTuningRequestTest, AutoAndNullAreTheDefaults) {
  const v1::JobSpec spec = Spec(R"(, "seed": null, "suffix": null, "integrations": [], "method": {"type": "supervised",
      "supervised": {"hyperparameters": {"n_epochs": "auto", "batch_size": null, "learning_rate_multiplier": "auto"}}})");
  EXPECT_FALSE(spec.has_run() || spec.has_optim() || spec.has_publish());
}

TEST(FineTuningRequestTest, ExtensionIsMergedOverTheOtherFields) {
  const v1::JobSpec spec = Spec(R"(, "hyperparameters": {"n_epochs": 3, "learning_rate_multiplier": 2},
      "nibble": {"lora": {"r": 4}, "run": {"max_steps": 10, "micro_batch": 2}, "optim": {"optimizer": "lion"}})");
  EXPECT_TRUE(spec.has_lora());
  EXPECT_EQ(spec.lora().r(), 4);
  EXPECT_EQ(spec.run().max_steps(), 10);
  EXPECT_FALSE(spec.run().has_epochs());
  EXPECT_EQ(spec.run().micro_batch(), 2);
  EXPECT_EQ(spec.optim().optimizer(), v1::OPTIMIZER_LION);
  EXPECT_DOUBLE_EQ(spec.optim().lr(), 4e-4);
}

TEST(FineTuningRequestTest, SuffixNamesTheModel) {
  const auto name = [](const std::string& more, const std::string& key) {
    return Spec(more, key).publish().output_model();
  };
  const std::string suffix = R"(, "suffix": "my-bot.v2")";
  EXPECT_THAT(name(suffix, ""), MatchesRegex("small-my-bot.v2-[0-9a-f]{8}"));
  EXPECT_NE(name(suffix, ""), name(suffix, "")) << "two jobs may have the same suffix";
  EXPECT_EQ(name(suffix, "key"), name(suffix, "key")) << "a repeated request must be the same";
  EXPECT_EQ(name(suffix + R"(, "nibble": {"publish": {"output_model": "mine"}})", ""), "mine");
  const auto body = base::ParseJson(R"({"model": ")" + std::string(80, 'm') +
                                    R"(", "training_file": "f", "suffix": ")" + std::string(40, 's') + "\"}");
  EXPECT_EQ(ParseFineTuningJob(*body, "")->request.spec().publish().output_model().size(), 63u);
}

TEST(FineTuningRequestTest, WrongFieldsAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(, "seed": -1)", "seed"},
      {R"(, "seed": 1.5)", "seed"},
      {R"(, "suffix": "")", "suffix"},
      {R"(, "suffix": "a b")", "suffix"},
      {R"(, "suffix": "a..b")", "suffix"},
      {R"(, "validation_file": 3)", "validation_file"},
      {R"(, "metadata": [])", "metadata"},
      {R"(, "metadata": {"a": 1})", "metadata.a"},
      {R"(, "integrations": [{"type": "wandb"}])", "integrations"},
      {R"(, "hyperparameters": 3)", "hyperparameters"},
      {R"(, "hyperparameters": {"n_epochs": 0})", "hyperparameters.n_epochs"},
      {R"(, "hyperparameters": {"n_epochs": "many"})", "hyperparameters.n_epochs"},
      {R"(, "hyperparameters": {"batch_size": 65537})", "hyperparameters.batch_size"},
      {R"(, "hyperparameters": {"learning_rate_multiplier": 0})", "hyperparameters.learning_rate_multiplier"},
      {R"(, "hyperparameters": {"beta": 1})", "hyperparameters.beta"},
      {R"(, "method": {})", "method.type"},
      {R"(, "method": {"type": "dpo"})", "method.type"},
      {R"(, "method": {"type": "supervised", "dpo": {"hyperparameters": {}}})", "method.dpo"},
      {R"(, "method": {"type": "supervised", "supervised": {"hyperparameters": {"batch_size": -1}}})",
       "method.supervised.hyperparameters.batch_size"},
      {R"(, "hyperparameters": {}, "method": {"type": "supervised", "supervised": {"hyperparameters": {}}})",
       "hyperparameters"},
      {R"(, "nibble": 3)", "nibble"},
      {R"(, "nibble": {"run": {"epoch": 3}})", "nibble.run.epoch"},
      {R"(, "nibble": {"run": {"epochs": "x"}})", "nibble.run.epochs"},
      {R"(, "nibble": {"run": {"grad_accum": 2}}, "hyperparameters": {"batch_size": 2})", "nibble.run.grad_accum"},
      {R"(, "nibble": {"train_dataset": ""})", "training_file"},
      {R"(, "tarining_file": "f")", "tarining_file"},
  };
  for (const auto& [more, field] : cases) EXPECT_EQ(RefusedField(more), field) << more;
}

TEST(FineTuningRequestTest, FieldsOfTheSpecHaveTheClientsNames) {
  const auto call = Parse(R"(, "metadata": {"a": "b"}, "hyperparameters": {"batch_size": 2},
      "nibble": {"run": {"epochs": 2}, "optim": {"lr": 1}})");
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->ClientField("base_model"), "model");
  EXPECT_EQ(call->ClientField("train_dataset"), "training_file");
  EXPECT_EQ(call->ClientField("labels.a"), "metadata.a");
  EXPECT_EQ(call->ClientField("run.grad_accum"), "hyperparameters.batch_size");
  EXPECT_EQ(call->ClientField("run.epochs"), "nibble.run.epochs");
  EXPECT_EQ(call->ClientField("optim.lr"), "nibble.optim.lr");
  EXPECT_EQ(call->ClientField("qlora.r"), "nibble.qlora.r");
}

}  // namespace
}  // namespace nibble::openai
