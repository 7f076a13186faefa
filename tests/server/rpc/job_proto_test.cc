#include "server/rpc/job_proto.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble::rpc {
namespace {

TEST(JobProtoTest, FigureThatIsNoNumberIsShownAsNoneAndOneThatIsAbsentAsZero) {
  jobs::JobRecord job;
  job.progress = *base::ParseJson(R"({"tokens_per_s":null,"tokens":null,"latest_eval":{"step":4,"eval_loss":null}})");
  const v1::Job shown = ToProto(job);
  EXPECT_TRUE(std::isnan(shown.latest_eval().eval_loss()));
  EXPECT_EQ(shown.latest_eval().step(), 4);
  EXPECT_EQ(shown.latest_eval().duration_ms(), 0);
  EXPECT_TRUE(std::isnan(shown.progress().tokens_per_s()));
  EXPECT_EQ(shown.progress().tokens(), 0);
}

// What a trainer writes for itself names its files; what a user of the service sees does not.
TEST(JobProtoTest, EventsKeepNoPathOfTheServer) {
  for (const char* type : {"warning", "log", "state"}) {
    jobs::Event event;
    event.type = type;
    event.body = {{"state", "QUEUED"},
                  {"reason", "R"},
                  {"message", "write /state/jobs/j/checkpoints/moments.bin: No space left on device"}};
    const std::string shown = ToProto(jobs::JobRecord(), event).DebugString();
    EXPECT_NE(shown.find("moments.bin: No space left"), std::string::npos) << shown;
    EXPECT_EQ(shown.find("/state/jobs"), std::string::npos) << shown;
  }
}

TEST(JobProtoTest, SeedsThatAreNotGivenAreThatOfTheRun) {
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

}  // namespace
}  // namespace nibble::rpc
