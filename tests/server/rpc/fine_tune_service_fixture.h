// Creates, awaits and lists jobs over the wire, for tests of the fine-tuning service.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "tests/server/model/files.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/tiny_job.h"
#include "tests/server/store/faulty_files.h"
#include "tests/support/soon.h"

namespace nibble {

using testing::HasSubstr;
using testing_support::AppTest;
using testing_support::FieldOf;
using testing_support::kTinyTexts;
using testing_support::ReasonOf;
using testing_support::TinyJob;

class FineTuneServiceTest : public AppTest {
 protected:
  AppOptions Options() override {
    AppOptions options = AppTest::Options();
    options.trainer_path = "/bin/false";  // starts, fails, is retried
    if (keep_free_bytes_ > 0) options.min_free_bytes = keep_free_bytes_;
    return options;
  }
  void SetUp() override {
    AppTest::SetUp();
    Import("tiny");
    Upload("texts", kTinyTexts);
  }
  std::int64_t keep_free_bytes_ = 0;  // min_free_bytes of the next server; 0: unchanged
  // Reads the job again until it is CANCELLED.
  void AwaitCancelled(v1::Job* job) {
    v1::GetJobRequest get;
    get.set_name(job->name());
    EXPECT_TRUE(testing_support::Soon([&] {
      EXPECT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::GetJob, get, job).ok());
      return job->state() == v1::JOB_STATE_CANCELLED;
    })) << job->DebugString();
  }
  // Watches the job until it is no longer PLANNING, then reads it.
  void AwaitPlan(v1::Job* job) {
    v1::WatchJobRequest request;
    request.set_name(job->name());
    grpc::ClientContext context;
    const auto reader = jobs_->WatchJob(&context, request);
    v1::JobEvent event;
    while (reader->Read(&event)) {
      if (event.has_snapshot() && event.snapshot().job().state() != v1::JOB_STATE_PLANNING) break;
      if (event.has_state() && event.state().to() != v1::JOB_STATE_PLANNING) break;
    }
    context.TryCancel();
    v1::GetJobRequest get;
    get.set_name(job->name());
    const grpc::Status got = Call(jobs_, &v1::FineTuneService::Stub::GetJob, get, job);
    EXPECT_TRUE(got.ok()) << got.error_message();
    EXPECT_NE(job->state(), v1::JOB_STATE_PLANNING);
  }
  // Calls CreateJob and returns its status; `job` is the job after its planning.
  grpc::Status Create(const v1::CreateJobRequest& request, v1::Job* job) {
    grpc::ClientContext context;
    const grpc::Status status = jobs_->CreateJob(&context, request, job);
    if (status.ok()) AwaitPlan(job);
    return status;
  }
  // The names on each page, up to the page without a token.
  std::vector<std::vector<std::string>> Pages(v1::ListJobsRequest request, int page_size) {
    std::vector<std::vector<std::string>> pages;
    request.set_page_size(page_size);
    do {
      v1::ListJobsResponse list;
      const auto status = Call(jobs_, &v1::FineTuneService::Stub::ListJobs, request, &list);
      EXPECT_TRUE(status.ok()) << status.error_message();
      pages.emplace_back();
      for (const v1::Job& job : list.jobs()) pages.back().push_back(job.name());
      request.set_page_token(list.next_page_token());
    } while (!request.page_token().empty() && pages.size() < 100);
    return pages;
  }
};

}  // namespace nibble
