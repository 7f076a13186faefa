#include "server/jobs/event.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace nibble::jobs {
namespace {

using base::Json;

const std::vector<EventBody>& All() {
  static const std::vector<EventBody>& all =
      *new std::vector<EventBody>{StateEvent{.state = "RUNNING",
                                             .from = "PREPARING",
                                             .reason = "R",
                                             .message = "m",
                                             .step = 3,
                                             .max_steps = 9,
                                             .resumed_step = 3,
                                             .retry_in_s = 1.5,
                                             .runtime = Runtime{.binary = "b", .isa = "avx2", .threads = 2}},
                                  StepEvent{.step = 1,
                                            .max_steps = 9,
                                            .loss = 2.5,
                                            .lr = 1e-4,
                                            .grad_norm = 0.5,
                                            .epoch = 1,
                                            .epochs_done = 0.25,
                                            .tokens = 100,
                                            .trainable_tokens = 90,
                                            .tokens_per_s = 12.5,
                                            .step_ms = 8,
                                            .kernel_launches = 40,
                                            .peak_memory_bytes = 1 << 30,
                                            .launches = {{"matmul_nf4", 7}}},
                                  EvalEvent{.step = 2,
                                            .eval_loss = 1.25,
                                            .best = true,
                                            .tokens = 50,
                                            .duration_ms = 3.5,
                                            .peak_memory_bytes = 9,
                                            .what = "int8",
                                            .launches = {{"matmul_int8", 3}}},
                                  CheckpointEvent{.step = 4,
                                                  .directory = "checkpoints/4",
                                                  .bytes = 1000,
                                                  .duration_ms = 2.5,
                                                  .digest = "d",
                                                  .metrics = {{"loss", 0.5}}},
                                  ModelEvent{.model = "tuned", .format = "lora", .digest = "d", .bytes = 77},
                                  WarningEvent{.reason = "ROWS_TRUNCATED", .message = "2 of 9 rows", .row_ids = {4, 9}},
                                  LogEvent{.message = "resumed", .launches = {{"rms_norm", 1}}}};
  return all;
}

TEST(EventTest, EveryKindSurvivesAJsonRoundTrip) {
  EXPECT_EQ(All().size(), std::variant_size_v<EventBody>);
  for (const EventBody& event : All()) {
    const Json json = Encode(event);
    EXPECT_GT(json.size(), 1u);
    const auto back = Decode(TypeOf(event), json);
    ASSERT_TRUE(back.has_value()) << TypeOf(event);
    EXPECT_EQ(back->index(), event.index());
    EXPECT_EQ(base::Dump(Encode(*back)), base::Dump(json)) << TypeOf(event);
  }
}

// Journals and databases of earlier versions have these names.
TEST(EventTest, StepHasTheFieldNamesOfTheJournal) {
  EXPECT_EQ(
      base::Dump(Encode(All()[1])),
      R"({"step":1,"max_steps":9,"loss":2.5,"lr":0.0001,"grad_norm":0.5,"epoch":1.0,"epochs_done":0.25,"tokens":100,)"
      R"("trainable_tokens":90,"tokens_per_s":12.5,"step_ms":8.0,"kernel_launches":40,"peak_memory_bytes":1073741824,)"
      R"("launches":{"matmul_nf4":7}})");
}

TEST(EventTest, NameOfIsTheKeyOfTheJsonForm) {
  EXPECT_STREQ(NameOf(&StepEvent::max_steps), "max_steps");
  EXPECT_STREQ(NameOf(&StepEvent::grad_norm), "grad_norm");
  EXPECT_STREQ(NameOf(&EvalEvent::eval_loss), "eval_loss");
}

TEST(EventTest, UnsetFieldsAreAbsent) {
  EXPECT_EQ(base::Dump(Encode(StateEvent{.state = "QUEUED"})), R"({"state":"QUEUED"})");
  EXPECT_EQ(base::Dump(Encode(StepEvent{})), "{}");
  const StepEvent step = DecodeStep(Json::object());
  EXPECT_FALSE(step.loss.has_value());
  EXPECT_TRUE(step.launches.empty());
}

TEST(EventTest, NullIsNan) {
  const StepEvent step = DecodeStep(*base::ParseJson(R"({"loss": null, "tokens": null})"));
  ASSERT_TRUE(step.loss.has_value());
  EXPECT_TRUE(std::isnan(*step.loss));
  EXPECT_FALSE(step.tokens.has_value()) << "a count has no NaN";
  EXPECT_EQ(base::Dump(Encode(StepEvent{.loss = std::numeric_limits<double>::quiet_NaN()})), R"({"loss":null})");
}

TEST(EventTest, ValuesOfAnotherTypeAreAbsent) {
  const StepEvent step = DecodeStep(*base::ParseJson(
      R"({"step": "1", "loss": [], "tokens": 1e300, "kernel_launches": 18446744073709551615, "max_steps": 3.0,)"
      R"( "launches": {"a": 1, "b": "2"}})"));
  EXPECT_FALSE(step.step.has_value());
  EXPECT_FALSE(step.loss.has_value());
  EXPECT_FALSE(step.tokens.has_value());
  EXPECT_FALSE(step.kernel_launches.has_value());
  EXPECT_EQ(step.max_steps, 3);
  EXPECT_EQ(step.launches, (std::map<std::string, std::int64_t>{{"a", 1}}));
  EXPECT_FALSE(DecodeStep(Json(3)).step.has_value());
  const auto warning = Decode("warning", *base::ParseJson(R"({"reason": 3, "row_ids": [4, "x", 9, 1.5, null]})"));
  EXPECT_EQ(std::get<WarningEvent>(*warning).reason, "");
  EXPECT_EQ(std::get<WarningEvent>(*warning).row_ids, (std::vector<std::int64_t>{4, 9}));
}

TEST(EventTest, UnknownTypeIsNotDecoded) { EXPECT_FALSE(Decode("telepathy", Json::object()).has_value()); }

TEST(EventTest, LaunchesOfReturnsTheLaunchesOfTheEvent) {
  EXPECT_EQ(LaunchesOf(All()[1]).at("matmul_nf4"), 7);
  EXPECT_EQ(LaunchesOf(All()[2]).at("matmul_int8"), 3);
  EXPECT_EQ(LaunchesOf(All()[6]).at("rms_norm"), 1);
  EXPECT_TRUE(LaunchesOf(All()[0]).empty());
}

}  // namespace
}  // namespace nibble::jobs
