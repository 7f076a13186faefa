#include "server/jobs/job_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace nibble::jobs {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StoredJob Job(const std::string& id) {
  StoredJob job;
  job.id = id;
  job.attempt = 1;
  job.spec.method = kMethodQLora;
  return job;
}

Event Step(double loss) {
  Event event;
  event.type = "step";
  event.body = {{"loss", loss}, {"tokens", 10}, {"step_ms", 5}};
  return event;
}

TEST(JobMetricsTest, LossNamesItsJobUntilTheAttemptEnds) {
  telemetry::Metrics metrics({}, JobLabels());
  base::FakeClock clock(absl::UnixEpoch());
  JobMetrics observer(metrics, clock);
  EXPECT_THAT(metrics.Scrape(), Not(HasSubstr("nibble_train_loss{")));
  for (const char* state : {"FAILED", "LOST", "PREEMPTED", "PAUSED", "CANCELLED", "SUCCEEDED"}) {
    observer.OnEvent(Job("one"), Step(2.5));
    observer.OnEvent(Job("two"), Step(3.5));
    EXPECT_THAT(metrics.Scrape(), HasSubstr("nibble_train_loss{job_id=\"one\",method=\"qlora\"} 2.5\n"));
    observer.OnAttemptEnded(Job("one"), state);
    EXPECT_THAT(metrics.Scrape(), Not(HasSubstr("job_id=\"one\""))) << state;
    EXPECT_THAT(metrics.Scrape(), HasSubstr("nibble_train_loss{job_id=\"two\",method=\"qlora\"} 3.5\n")) << state;
  }
}

}  // namespace
}  // namespace nibble::jobs
