#include "server/rpc/job_proto.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "google/rpc/error_details.pb.h"
#include "server/base/error.h"
#include "server/rpc/time.h"

namespace nibble::rpc {
namespace {

TEST(JobProtoTest, NullFigureIsShownAsNanAndAbsentFigureAsZero) {
  jobs::StoredJob job;
  job.progress = *base::ParseJson(R"({"tokens_per_s":null,"tokens":null,"latest_eval":{"step":4,"eval_loss":null}})");
  const v1::Job shown = ToProto(job);
  EXPECT_TRUE(std::isnan(shown.latest_eval().eval_loss()));
  EXPECT_EQ(shown.latest_eval().step(), 4);
  EXPECT_EQ(shown.latest_eval().duration_ms(), 0);
  EXPECT_TRUE(std::isnan(shown.progress().tokens_per_s()));
  EXPECT_EQ(shown.progress().tokens(), 0);
}

TEST(JobProtoTest, DurationBeyondTheRangeOfAMessageIsClamped) {
  for (const absl::Duration forever : {absl::Seconds(9.2e18), absl::InfiniteDuration()}) {
    EXPECT_EQ(ToProto(forever).seconds(), 315'576'000'000);
    EXPECT_EQ(ToProto(-forever).seconds(), -315'576'000'000);
    EXPECT_EQ(ToProto(forever).nanos(), 0);
  }
  EXPECT_EQ(ToProto(absl::Milliseconds(1500)).seconds(), 1);
  EXPECT_EQ(ToProto(absl::Milliseconds(1500)).nanos(), 500'000'000);
}

// Messages that a trainer writes name its files; a user of the service must not see the paths.
TEST(JobProtoTest, EventsKeepNoPathOfTheServer) {
  for (const char* type : {"warning", "log", "state"}) {
    jobs::Event event;
    event.type = type;
    event.body = {{"state", "QUEUED"},
                  {"reason", "R"},
                  {"message", "write /state/jobs/j/checkpoints/moments.bin: No space left on device"}};
    const std::string shown = ToProto(jobs::StoredJob(), event).DebugString();
    EXPECT_NE(shown.find("moments.bin: No space left"), std::string::npos) << shown;
    EXPECT_EQ(shown.find("/state/jobs"), std::string::npos) << shown;
  }
}

TEST(JobProtoTest, UnsetSeedsAreThatOfTheRun) {
  v1::JobSpec spec;
  spec.mutable_qlora();
  spec.mutable_run()->set_seed(7);
  auto taken = FromProto(spec);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->run.seed, 7);
  EXPECT_EQ(taken->qlora.seed, 7);
  EXPECT_EQ(taken->data.shuffle_seed, 7);
  spec.mutable_qlora()->set_seed(0);
  spec.mutable_data()->set_shuffle_seed(3);
  taken = FromProto(spec);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->qlora.seed, 0);
  EXPECT_EQ(taken->data.shuffle_seed, 3);
}

TEST(JobProtoTest, AddSpecialTokensIsConvertedBothWays) {
  v1::JobSpec spec;
  spec.mutable_qlora();
  EXPECT_FALSE(ToProto(*FromProto(spec)).data().has_add_special_tokens());
  for (const bool add : {false, true}) {
    spec.mutable_data()->set_add_special_tokens(add);
    const auto taken = FromProto(spec);
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_EQ(taken->data.add_special_tokens, add);
    const v1::JobSpec shown = ToProto(*taken);
    ASSERT_TRUE(shown.data().has_add_special_tokens());
    EXPECT_EQ(shown.data().add_special_tokens(), add);
  }
}

TEST(JobProtoTest, CancelledJobNamesTheUserAsItsReason) {
  jobs::StoredJob job;
  job.state = jobs::JobState::kCancelled;
  job.error = jobs::JobError{"CANCELLED", "USER", "cancelled by the user"};
  const v1::Job shown = ToProto(job);
  EXPECT_EQ(shown.error().code(), static_cast<int>(absl::StatusCode::kCancelled));
  EXPECT_EQ(shown.state_reason().reason(), "USER");
  google::rpc::ErrorInfo info;
  for (const auto& detail : shown.error().details()) detail.UnpackTo(&info);
  EXPECT_EQ(info.reason(), "USER");
  EXPECT_EQ(info.metadata().at("fault"), "user");
}

TEST(JobProtoTest, EpochOfAJobIsAFractionAndOfAStepWholePasses) {
  jobs::StoredJob job;
  job.progress = *base::ParseJson(R"({"epoch":1.25,"latest_step":{"step":5,"epoch":1,"epochs_done":1.25}})");
  const v1::Job shown = ToProto(job);
  EXPECT_EQ(shown.progress().epoch(), 1.25);
  EXPECT_EQ(shown.latest_step().epoch(), 1);
}

TEST(JobProtoTest, CheckpointEventsHaveTheirMetrics) {
  jobs::Event event;
  event.type = "checkpoint";
  event.body = {{"step", 5}, {"metrics", {{"loss", 2.5}, {"eval_loss", 3.5}, {"note", "none"}}}};
  const v1::JobEvent shown = ToProto(jobs::StoredJob(), event);
  const auto& metrics = shown.checkpoint().checkpoint().metrics();
  EXPECT_EQ(metrics.size(), 2u);
  EXPECT_EQ(metrics.at("loss"), 2.5);
  EXPECT_EQ(metrics.at("eval_loss"), 3.5);
}

TEST(JobProtoTest, WarningsNameAtMostTwentyRows) {
  jobs::Event event;
  event.type = "warning";
  event.body = {{"reason", "ROWS_TRUNCATED"}, {"message", "2 of 9 rows"}, {"row_ids", {4, "x", 9, 1.5, nullptr}}};
  v1::JobEvent shown = ToProto(jobs::StoredJob(), event);
  ASSERT_EQ(shown.warning().row_ids_size(), 2) << shown.DebugString();
  EXPECT_EQ(shown.warning().row_ids(0), 4);
  EXPECT_EQ(shown.warning().row_ids(1), 9);
  event.body["row_ids"] = std::vector<std::int64_t>(100, 7);
  shown = ToProto(jobs::StoredJob(), event);
  EXPECT_EQ(shown.warning().row_ids_size(), 20);
  event.body["row_ids"] = "all";
  EXPECT_EQ(ToProto(jobs::StoredJob(), event).warning().row_ids_size(), 0);
}

TEST(JobProtoTest, JobShowsItsDigestsAndItsBestCheckpoint) {
  jobs::StoredJob job;
  job.id = "job-1";
  job.digests = {.config = "a", .data = "b", .eval_data = "c", .tokenizer = "d", .code = "e", .base_model = "f"};
  EXPECT_FALSE(ToProto(job).has_best_checkpoint());
  job.best_checkpoint.emplace();
  job.best_checkpoint->step = 5;
  job.best_checkpoint->metrics["eval_loss"] = 2.5;
  const v1::Job shown = ToProto(job);
  EXPECT_EQ(shown.best_checkpoint().name(), "job-1/5");
  EXPECT_EQ(shown.best_checkpoint().metrics().at("eval_loss"), 2.5);
  const v1::JobDigests& digests = shown.digests();
  EXPECT_EQ(digests.config() + digests.data() + digests.eval_data() + digests.tokenizer() + digests.code() + digests.base_model(),
            "abcdef");
}

TEST(JobProtoTest, UnknownEnumsAndRampsOfBitNetAreRefused) {
  const auto taken = [](const std::function<void(v1::BitNetQatMethod&)>& change) {
    v1::JobSpec spec;
    change(*spec.mutable_bitnet_qat());
    return FromProto(spec).status();
  };
  const auto dtype = taken([](auto& m) { m.set_master_dtype(static_cast<v1::ComputeDtype>(77)); });
  EXPECT_TRUE(absl::IsInvalidArgument(dtype)) << dtype;
  EXPECT_EQ(base::ReasonMetadata(dtype)["field"], "bitnet_qat.master_dtype");
  const auto scale = taken([](auto& m) { m.set_weight_scale(static_cast<v1::WeightScale>(77)); });
  EXPECT_TRUE(absl::IsInvalidArgument(scale)) << scale;
  EXPECT_EQ(base::ReasonMetadata(scale)["field"], "bitnet_qat.weight_scale");
  EXPECT_TRUE(absl::IsUnimplemented(taken([](auto& m) { m.set_master_dtype(v1::COMPUTE_DTYPE_BF16); })));
  EXPECT_TRUE(absl::IsUnimplemented(taken([](auto& m) { m.mutable_warmup_lambda()->set_steps(5); })));
  EXPECT_TRUE(absl::IsUnimplemented(taken([](auto& m) { m.mutable_warmup_lambda()->set_from(0.5); })));
  EXPECT_TRUE(absl::IsUnimplemented(taken([](auto& m) { m.mutable_warmup_lambda()->set_to(0.0); })));
  const auto defaults = taken([](auto& m) {
    m.set_master_dtype(v1::COMPUTE_DTYPE_F32);
    m.set_weight_scale(v1::WEIGHT_SCALE_ABSMEAN_TENSOR);
    m.mutable_warmup_lambda()->set_from(0.0);
    m.mutable_warmup_lambda()->set_to(1.0);
    m.mutable_warmup_lambda()->set_steps(0);
  });
  EXPECT_TRUE(defaults.ok()) << defaults;
}

}  // namespace
}  // namespace nibble::rpc
