// Cursors of the lists of jobs and events.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/server/rpc/fine_tune_service_fixture.h"

namespace nibble {
namespace {

class JobListTest : public FineTuneServiceTest {};

TEST_F(JobListTest, ListCanBeginBeforeAJob) {
  std::vector<std::string> ids;  // newest first
  for (int i = 0; i < 3; ++i) {
    v1::CreateJobRequest request = TinyJob();
    request.mutable_spec()->mutable_publish()->set_output_model("out" + std::to_string(i));
    v1::Job job;
    ASSERT_TRUE(Create(request, &job).ok());
    ids.insert(ids.begin(), job.name());
  }
  v1::ListJobsRequest request;
  request.set_created_before(ids[0]);
  v1::ListJobsResponse page;
  ASSERT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::ListJobs, request, &page).ok());
  ASSERT_EQ(page.jobs_size(), 2);
  EXPECT_EQ(page.jobs(0).name(), ids[1]);
  EXPECT_EQ(page.jobs(1).name(), ids[2]);
  request.set_created_before("job-absent");
  EXPECT_EQ(ReasonOf(Call(jobs_, &v1::FineTuneService::Stub::ListJobs, request, &page)), "JOB");
  request.set_created_before(ids[0]);
  request.set_page_token("1");
  EXPECT_EQ(FieldOf(Call(jobs_, &v1::FineTuneService::Stub::ListJobs, request, &page)), "created_before");
}

TEST_F(JobListTest, NewestEventsAreListedFirst) {
  using Stub = v1::FineTuneService::Stub;
  v1::Job job;
  ASSERT_TRUE(Create(TinyJob(), &job).ok());
  v1::CancelJobRequest cancel;
  cancel.set_name(job.name());
  ASSERT_TRUE(Call(jobs_, &Stub::CancelJob, cancel, &job).ok());
  AwaitCancelled(&job);
  v1::ListJobEventsRequest request;
  request.set_name(job.name());
  v1::ListJobEventsResponse all;
  ASSERT_TRUE(Call(jobs_, &Stub::ListJobEvents, request, &all).ok());
  std::vector<std::int64_t> wanted;
  for (const v1::JobEvent& event : all.events()) wanted.insert(wanted.begin(), event.sequence());
  ASSERT_GE(wanted.size(), 2u);
  request.set_newest_first(true);
  const auto listed = [&](int size) {
    request.set_page_size(size);
    request.clear_page_token();
    std::vector<std::int64_t> sequences;
    do {
      v1::ListJobEventsResponse page;
      EXPECT_TRUE(Call(jobs_, &Stub::ListJobEvents, request, &page).ok());
      EXPECT_LE(page.events_size(), size);
      for (const v1::JobEvent& event : page.events()) sequences.push_back(event.sequence());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return sequences;
  };
  EXPECT_EQ(listed(100), wanted);
  EXPECT_EQ(listed(1), wanted);
  request.set_before_sequence(wanted.front());
  EXPECT_EQ(listed(1), std::vector<std::int64_t>(wanted.begin() + 1, wanted.end()));
  const auto refused = [&] {
    v1::ListJobEventsResponse page;
    return FieldOf(Call(jobs_, &Stub::ListJobEvents, request, &page));
  };
  request.set_before_sequence(0);
  EXPECT_EQ(refused(), "before_sequence");
  request.set_before_sequence(1);
  request.set_after_sequence(1);
  EXPECT_EQ(refused(), "after_sequence");
  request.clear_after_sequence();
  request.clear_newest_first();
  EXPECT_EQ(refused(), "before_sequence");
}

}  // namespace
}  // namespace nibble
