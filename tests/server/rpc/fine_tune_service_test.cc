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
#include "server/base/human_bytes.h"
#include "tests/server/model/files.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/fine_tune_service_fixture.h"
#include "tests/server/rpc/tiny_job.h"
#include "tests/server/store/faulty_files.h"

namespace nibble {
namespace {

TEST_F(FineTuneServiceTest, WrongSpecIsRefusedBeforeAnythingIsQueued) {
  v1::Job job;
  const auto refused = [&](const std::function<void(v1::JobSpec&)>& spoil) {
    v1::CreateJobRequest request = TinyJob();
    spoil(*request.mutable_spec());
    const auto status = Create(request, &job);
    EXPECT_FALSE(status.ok());
    return status;
  };
  EXPECT_EQ(FieldOf(refused([](v1::JobSpec& s) { s.mutable_qlora()->set_r(0); })), "qlora.r");
  EXPECT_EQ(FieldOf(refused([](v1::JobSpec& s) { s.mutable_optim()->set_lr(-1); })), "optim.lr");
  EXPECT_EQ(ReasonOf(refused([](v1::JobSpec& s) { s.set_base_model("nobody"); })), "MODEL");
  EXPECT_EQ(ReasonOf(refused([](v1::JobSpec& s) { s.set_train_dataset("nothing"); })), "DATASET");
  EXPECT_EQ(ReasonOf(refused([](v1::JobSpec& s) { s.set_eval_dataset("nothing"); })), "DATASET");
  EXPECT_EQ(FieldOf(refused([](v1::JobSpec& s) { s.mutable_data()->set_max_seq_len(1000); })), "data.max_seq_len");
  EXPECT_EQ(FieldOf(refused([](v1::JobSpec& s) { s.mutable_run()->set_eval_every(1); })), "run.eval_every");
  EXPECT_EQ(FieldOf(refused([](v1::JobSpec& s) { s.clear_method(); })), "method");
  EXPECT_EQ(ReasonOf(refused([](v1::JobSpec& s) { s.mutable_publish()->set_output_model("tiny"); })), "NAME_TAKEN");
  const auto device = refused([](v1::JobSpec& s) {
    s.mutable_device()->set_kind(v1::DEVICE_KIND_CUDA);
    s.mutable_device()->set_ordinal(3);
  });
  EXPECT_EQ(FieldOf(device), "device");
  EXPECT_THAT(device.error_message(), HasSubstr("cuda:3"));
  v1::ListJobsResponse list;
  grpc::ClientContext context;
  ASSERT_TRUE(jobs_->ListJobs(&context, {}, &list).ok());
  EXPECT_EQ(list.jobs_size(), 0);
}

TEST_F(FineTuneServiceTest, DataWithoutATrainableTokenEndsTheJobAsFailed) {
  // The prompt alone fills the sequence, so that the completion is cut off.
  std::string prompt;
  for (int i = 0; i < 64; ++i) prompt += "a b ";
  Upload("hopeless", "{\"prompt\": \"" + prompt + "\", \"completion\": \"c\"}\n");
  v1::CreateJobRequest request = TinyJob();
  request.mutable_spec()->set_train_dataset("hopeless");
  request.mutable_spec()->mutable_data()->set_max_seq_len(8);
  v1::Job job;
  ASSERT_TRUE(Create(request, &job).ok());
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.error().code(), static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
  google::rpc::ErrorInfo info;
  for (const auto& detail : job.error().details()) detail.UnpackTo(&info);
  EXPECT_EQ(info.reason(), "NO_TRAINABLE_TOKENS");
  EXPECT_EQ(info.metadata().at("fault"), "user");
  EXPECT_EQ(info.metadata().at("field"), "train_dataset");
}

// Loading a tokenizer may take seconds, so CreateJob and PlanJob leave it to the planning. A tokenizer that cannot be
// loaded shows that.
TEST_F(FineTuneServiceTest, CreateJobAndPlanJobReadNoTokenizer) {
  app_.reset();
  const std::string path = directory_ + "/state/models/tiny/tokenizer.json";
  model::WriteBytes(path, std::string(model::ReadBytes(path).size(), ' '));
  StartApp();
  v1::CreateJobRequest request = TinyJob();
  request.mutable_spec()->mutable_data()->clear_max_seq_len();
  v1::Job job;
  const grpc::Status created = Call(jobs_, &v1::FineTuneService::Stub::CreateJob, request, &job);
  ASSERT_TRUE(created.ok()) << created.error_message();
  EXPECT_EQ(job.spec().data().max_seq_len(), 256) << "the model's context";
  v1::PlanJobRequest plan;
  *plan.mutable_spec() = request.spec();
  google::longrunning::Operation operation;
  const grpc::Status begun = Call(jobs_, &v1::FineTuneService::Stub::PlanJob, plan, &operation);
  ASSERT_TRUE(begun.ok()) << begun.error_message();
  EXPECT_EQ(ReasonOf(Wait(operation).error()), "ARTIFACT_CORRUPT");
  AwaitPlan(&job);
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(ReasonOf(job.error()), "ARTIFACT_CORRUPT");
}

TEST_F(FineTuneServiceTest, UnimplementedMethodsAndFieldsAreNamed) {
  v1::CreateJobRequest request = TinyJob();
  request.mutable_spec()->mutable_aqt();
  v1::Job job;
  auto status = Create(request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("aqt"));
  request = TinyJob();
  request.mutable_spec()->mutable_run()->mutable_early_stop();
  EXPECT_THAT(Create(request, &job).error_message(), HasSubstr("RunConfig.early_stop"));
}

TEST_F(FineTuneServiceTest, PlanCreatesNothingAndReportsMemoryStepsAndTokens) {
  v1::PlanJobRequest request;
  *request.mutable_spec() = TinyJob().spec();
  request.mutable_spec()->mutable_run()->set_max_steps(3);
  v1::PlanJobResponse plan;
  const auto status = Call(jobs_, &v1::FineTuneService::Stub::PlanJob, request, &plan);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(plan.max_steps(), 3);
  EXPECT_GT(plan.tokens(), plan.trainable_tokens());
  EXPECT_GT(plan.trainable_tokens(), 0);
  EXPECT_GT(plan.trainable_parameters(), 0);
  EXPECT_FALSE(plan.has_eta());  // nothing has run here yet
  std::int64_t sum = 0;
  for (const auto& item : plan.memory()) sum += item.bytes();
  EXPECT_EQ(plan.memory_total_bytes(), sum);
  EXPECT_EQ(plan.spec().device().kind(), v1::DEVICE_KIND_CPU);  // resolved
  v1::ListJobsResponse list;
  grpc::ClientContext context2;
  ASSERT_TRUE(jobs_->ListJobs(&context2, {}, &list).ok());
  EXPECT_EQ(list.jobs_size(), 0);
  // A plan refuses what CreateJob would refuse.
  request.mutable_spec()->set_train_dataset("nothing");
  google::longrunning::Operation begun;
  EXPECT_EQ(ReasonOf(Call(jobs_, &v1::FineTuneService::Stub::PlanJob, request, &begun)), "DATASET") << "at once";
  request.mutable_spec()->mutable_qlora()->set_r(0);
  EXPECT_EQ(ReasonOf(Call(jobs_, &v1::FineTuneService::Stub::PlanJob, request, &begun)), "FIELD_VIOLATION");
}

TEST_F(FineTuneServiceTest, PlanWarnsOfAJobThatDoesNotFitOnTheDisk) {  // T10
  v1::PlanJobResponse plan;
  const auto reasons = [&] {
    v1::PlanJobRequest request;
    *request.mutable_spec() = TinyJob().spec();
    const auto status = Call(jobs_, &v1::FineTuneService::Stub::PlanJob, request, &plan);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::set<std::string> found;
    for (const v1::Warning& warning : plan.warnings()) found.insert(warning.reason());
    return found;
  };
  EXPECT_FALSE(reasons().contains("DISK"));
  const std::int64_t needed = plan.disk_bytes();
  EXPECT_GT(needed, 0);
  EXPECT_GT(plan.disk_available_bytes(), needed);
  app_.reset();
  keep_free_bytes_ = std::int64_t{1} << 60;
  StartApp();
  EXPECT_TRUE(reasons().contains("DISK"));
  EXPECT_EQ(plan.disk_bytes(), needed);
  EXPECT_EQ(plan.disk_available_bytes(), 0);
}

TEST_F(FineTuneServiceTest, PlanWarnsOfANameThatIsTaken) {
  v1::PlanJobRequest request;
  *request.mutable_spec() = TinyJob().spec();
  const auto warning = [&](const std::string& name) {
    request.mutable_spec()->mutable_publish()->set_output_model(name);
    v1::PlanJobResponse plan;
    const auto status = Call(jobs_, &v1::FineTuneService::Stub::PlanJob, request, &plan);
    EXPECT_TRUE(status.ok()) << status.error_message();
    for (const v1::Warning& one : plan.warnings()) {
      if (one.reason() == "NAME_TAKEN") return one.message();
    }
    return std::string();
  };
  EXPECT_EQ(warning("free"), "");
  EXPECT_EQ(warning(""), "");
  EXPECT_THAT(warning("tiny"), HasSubstr("there is a model named \"tiny\" already"));
  v1::CreateJobRequest create = TinyJob();
  create.mutable_spec()->mutable_publish()->set_output_model("reserved");
  v1::Job job;
  ASSERT_TRUE(Create(create, &job).ok());
  EXPECT_THAT(warning("reserved"), HasSubstr("is taken by"));
}

// The server leaves 1 MiB of the disk to jobs.
class FullDiskPlanTest : public FineTuneServiceTest {
 protected:
  AppOptions Options() override {
    AppOptions options = FineTuneServiceTest::Options();
    options.files = &disk_;
    options.min_free_bytes = kKeepFree;
    return options;
  }
  static constexpr std::int64_t kKeepFree = 64 << 20, kSpare = 1 << 20;
  store::DiskWithRoom disk_{kKeepFree + kSpare};
};

TEST_F(FullDiskPlanTest, PlanAndCreateCountCachedBasesAlike) {  // T11
  v1::PlanJobRequest request;
  *request.mutable_spec() = TinyJob().spec();
  v1::PlanJobResponse plan;
  const auto warned = [&] {
    const auto status = Call(jobs_, &v1::FineTuneService::Stub::PlanJob, request, &plan);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return std::any_of(plan.warnings().begin(), plan.warnings().end(),
                       [](const v1::Warning& one) { return one.reason() == "DISK"; });
  };
  EXPECT_TRUE(warned());
  EXPECT_EQ(plan.disk_available_bytes(), kSpare);
  v1::Job job;
  ASSERT_TRUE(Create(TinyJob(), &job).ok());
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(job.error().message(),
              HasSubstr("the job writes up to " + base::HumanBytes(plan.disk_bytes()) +
                        ", the server's disk has room for 1.0 MiB above the space that it keeps"));

  std::filesystem::create_directories(directory_ + "/state/bases/old");
  std::ofstream(directory_ + "/state/bases/old/weights") << std::string(64 << 20, 'w');
  EXPECT_FALSE(warned());
  EXPECT_GE(plan.disk_available_bytes(), 65 << 20);
  EXPECT_LT(plan.disk_available_bytes(), 66 << 20);
  ASSERT_TRUE(Create(TinyJob(), &job).ok());
  EXPECT_EQ(job.state(), v1::JOB_STATE_QUEUED) << job.error().message();
}

TEST_F(FineTuneServiceTest, AllFieldsOfBitNetAreResolved) {
  v1::CreateJobRequest request = TinyJob();
  request.mutable_spec()->mutable_bitnet_qat()->set_ste(v1::STE_MODE_CLIPPED);
  v1::Job job;
  const auto status = Create(request, &job);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const v1::BitNetQatMethod& method = job.spec().bitnet_qat();
  EXPECT_EQ(method.preset(), "native");
  EXPECT_EQ(method.act_scale(), v1::ACTIVATION_SCALE_PER_TOKEN);
  EXPECT_EQ(method.act_bits(), 8);
  EXPECT_EQ(method.ste(), v1::STE_MODE_CLIPPED);
  EXPECT_EQ(method.init(), v1::WEIGHT_INIT_PRETRAINED);
  EXPECT_EQ(method.compute_dtype(), v1::COMPUTE_DTYPE_BF16);
}

TEST_F(FineTuneServiceTest, AllFieldsOfTheAnsweredSpecAreResolved) {
  v1::Job job;
  const auto status = Create(TinyJob(), &job);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(job.spec().device().kind(), v1::DEVICE_KIND_CPU);
  EXPECT_EQ(job.spec().data().max_seq_len(), 256);  // the model's positions: fewer than the default
  EXPECT_EQ(job.spec().data().format(), v1::DATASET_FORMAT_TEXT);
  EXPECT_EQ(job.spec().data().overlong(), v1::OVERLONG_POLICY_SPLIT);
  EXPECT_EQ(job.spec().optim().schedule(), v1::LR_SCHEDULE_COSINE);
  EXPECT_EQ(job.output_model(), "out");
  EXPECT_EQ(job.spec().qlora().target_modules_size(), 7);
}

TEST_F(FineTuneServiceTest, JobHasTheDigestsOfItsInputs) {
  v1::Job job;
  ASSERT_TRUE(Create(TinyJob(), &job).ok());
  for (const std::string& digest : {job.digests().config(), job.digests().data(), job.digests().tokenizer(),
                                    job.digests().code(), job.digests().base_model()}) {
    EXPECT_THAT(digest, testing::MatchesRegex("[0-9a-f]{64}"));
  }
  EXPECT_EQ(job.digests().eval_data(), "");
  v1::ServerInfo info;
  ASSERT_TRUE(Call(server_, &v1::ServerService::Stub::GetServerInfo, v1::GetServerInfoRequest(), &info).ok());
  EXPECT_EQ(job.digests().code(), info.code_digest());
  v1::GetModelRequest base;
  base.set_name("tiny");
  v1::Model model;
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::GetModel, base, &model).ok());
  EXPECT_EQ(job.digests().base_model(), model.digest());
  app_.reset();
  StartApp();
  v1::GetJobRequest again;
  again.set_name(job.name());
  v1::Job later;
  ASSERT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::GetJob, again, &later).ok());
  EXPECT_EQ(later.digests().SerializeAsString(), job.digests().SerializeAsString());
  v1::ListJobsResponse list;
  ASSERT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::ListJobs, v1::ListJobsRequest(), &list).ok());
  ASSERT_EQ(list.jobs_size(), 1);
  EXPECT_EQ(list.jobs(0).digests().SerializeAsString(), job.digests().SerializeAsString());
}

TEST_F(FineTuneServiceTest, SameRequestIdReturnsTheSameJob) {
  v1::CreateJobRequest request = TinyJob();
  request.set_request_id("4f0c0c4e-1a2b-4c3d-8e9f-000000000002");
  v1::Job first, second;
  ASSERT_TRUE(Create(request, &first).ok());
  ASSERT_TRUE(Create(request, &second).ok());
  EXPECT_EQ(first.name(), second.name());
  request.mutable_spec()->mutable_run()->set_max_steps(3);
  EXPECT_EQ(ReasonOf(Create(request, &second)), "IDEMPOTENCY_CONFLICT");
}

// The labels are a map: each parse of the same bytes iterates over them in another order.
TEST_F(FineTuneServiceTest, C9SameRequestIdReturnsTheSamePlanInAnyOrderOfLabels) {
  v1::PlanJobRequest request;
  *request.mutable_spec() = TinyJob().spec();
  request.set_request_id("plan-1");
  for (int i = 0; i < 16; ++i) (*request.mutable_spec()->mutable_labels())["label-" + std::to_string(i)] = "x";
  const std::string bytes = request.SerializeAsString();
  std::set<std::string> names;
  for (int i = 0; i < 20; ++i) {
    v1::PlanJobRequest again;
    ASSERT_TRUE(again.ParseFromString(bytes));
    google::longrunning::Operation operation;
    const grpc::Status status = Call(jobs_, &v1::FineTuneService::Stub::PlanJob, again, &operation);
    EXPECT_TRUE(status.ok()) << i << ": " << status.error_message();
    names.insert(operation.name());
  }
  EXPECT_EQ(names.size(), 1u);
}

TEST_F(FineTuneServiceTest, FiftyParallelCallsOfOneRequestMakeOneJob) {  // R24
  v1::CreateJobRequest request = TinyJob();
  request.set_request_id("4f0c0c4e-1a2b-4c3d-8e9f-000000000024");
  std::vector<std::thread> threads;
  std::vector<std::string> names(50);
  for (std::string& name : names) {
    threads.emplace_back([&] {
      v1::Job job;
      const auto status = Create(request, &job);
      EXPECT_TRUE(status.ok()) << status.error_message();
      name = job.name();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), 1u);
  v1::ListJobsResponse list;
  grpc::ClientContext context;
  ASSERT_TRUE(jobs_->ListJobs(&context, {}, &list).ok());
  EXPECT_EQ(list.jobs_size(), 1);
}

// Jobs that the filter leaves out shift the pages, but no job is lost between two pages.
TEST_F(FineTuneServiceTest, PagesOfAFilteredListCoverTheWholeList) {
  const std::string labels = "MMMMMxMMxxM";  // oldest first: M matches
  for (std::size_t i = 0; i < labels.size(); ++i) {
    v1::CreateJobRequest request = TinyJob();
    request.mutable_spec()->mutable_publish()->set_output_model("out" + std::to_string(i));
    (*request.mutable_spec()->mutable_labels())["kind"] = labels.substr(i, 1);
    v1::Job job;
    const auto status = Create(request, &job);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  v1::ListJobsRequest request;
  (*request.mutable_filter()->mutable_labels())["kind"] = "M";
  const auto all = Pages(request, 100);
  ASSERT_EQ(all.size(), 1u);
  ASSERT_EQ(all[0].size(), 8u);
  for (int size = 1; size <= 9; ++size) {
    std::vector<std::string> joined;
    for (const auto& page : Pages(request, size)) {
      EXPECT_LE(page.size(), static_cast<std::size_t>(size));
      joined.insert(joined.end(), page.begin(), page.end());
    }
    EXPECT_EQ(joined, all[0]) << size;
  }
}

TEST_F(FineTuneServiceTest, UnspecifiedStateFiltersNothing) {
  v1::Job job;
  ASSERT_TRUE(Create(TinyJob(), &job).ok());
  v1::CancelJobRequest cancel;
  cancel.set_name(job.name());
  ASSERT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::CancelJob, cancel, &job).ok());
  const auto jobs = [&](const std::vector<int>& states, v1::ListJobsResponse* list) {
    v1::ListJobsRequest request;
    for (const int state : states) request.mutable_filter()->add_states(static_cast<v1::JobState>(state));
    return Call(jobs_, &v1::FineTuneService::Stub::ListJobs, request, list);
  };
  const auto count = [&](const std::vector<int>& states) {
    v1::ListJobsResponse list;
    const grpc::Status status = jobs(states, &list);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return list.jobs_size();
  };
  EXPECT_EQ(count({}), 1);
  EXPECT_EQ(count({v1::JOB_STATE_UNSPECIFIED}), 1);
  EXPECT_EQ(count({v1::JOB_STATE_SUCCEEDED}), 0);
  EXPECT_EQ(count({v1::JOB_STATE_UNSPECIFIED, v1::JOB_STATE_SUCCEEDED}), 0);
  v1::ListJobsResponse list;
  EXPECT_EQ(FieldOf(jobs({99}, &list)), "filter.states");
}

TEST_F(FineTuneServiceTest, EtagsGuardEveryMutation) {
  v1::Job job;
  ASSERT_TRUE(Create(TinyJob(), &job).ok());
  ASSERT_FALSE(job.etag().empty());
  const auto call = [&](auto method, auto request, auto* response, const std::string& etag) {
    request.set_name(job.name());
    request.set_etag(etag);
    grpc::ClientContext context;
    return ((*jobs_).*method)(&context, request, response);
  };
  using Stub = v1::FineTuneService::Stub;
  v1::Job after;
  v1::DeleteJobResponse deleted;
  EXPECT_EQ(ReasonOf(call(&Stub::CancelJob, v1::CancelJobRequest(), &after, "other")), "ETAG_MISMATCH");
  EXPECT_EQ(ReasonOf(call(&Stub::PauseJob, v1::PauseJobRequest(), &after, "other")), "ETAG_MISMATCH");
  EXPECT_EQ(ReasonOf(call(&Stub::ResumeJob, v1::ResumeJobRequest(), &after, "other")), "ETAG_MISMATCH");
  EXPECT_EQ(ReasonOf(call(&Stub::CheckpointJob, v1::CheckpointJobRequest(), &after, "other")), "ETAG_MISMATCH");
  const auto mismatch = call(&Stub::DeleteJob, v1::DeleteJobRequest(), &deleted, "other");
  EXPECT_EQ(mismatch.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(ReasonOf(mismatch), "ETAG_MISMATCH");
}

TEST_F(FineTuneServiceTest, IllegalActionsOnAJobAreRefused) {
  v1::Job job;
  ASSERT_TRUE(Create(TinyJob(), &job).ok());
  v1::CancelJobRequest cancel;
  cancel.set_name(job.name());
  cancel.set_keep_checkpoint(true);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(jobs_->CancelJob(&context, cancel, &job).ok());
  }
  AwaitCancelled(&job);
  EXPECT_EQ(job.error().code(), grpc::StatusCode::CANCELLED);
  v1::CheckpointJobRequest checkpoint;
  checkpoint.set_name(job.name());
  grpc::ClientContext context;
  EXPECT_EQ(ReasonOf(jobs_->CheckpointJob(&context, checkpoint, &job)), "ILLEGAL_STATE");
  v1::PublishCheckpointRequest publish;
  publish.set_checkpoint(job.name() + "/5");
  publish.set_name("m");
  google::longrunning::Operation begun;
  EXPECT_EQ(ReasonOf(Call(models_, &v1::ModelService::Stub::PublishCheckpoint, publish, &begun)), "CHECKPOINT");
  publish.set_checkpoint("../../x");
  EXPECT_EQ(ReasonOf(Call(models_, &v1::ModelService::Stub::PublishCheckpoint, publish, &begun)), "CHECKPOINT");
}

TEST_F(FineTuneServiceTest, AWatchBeginsWithASnapshotAndEndsWithTheJob) {
  v1::Job job;
  ASSERT_TRUE(Create(TinyJob(), &job).ok());
  v1::WatchJobRequest request;
  request.set_name(job.name());
  grpc::ClientContext context;
  auto reader = jobs_->WatchJob(&context, request);
  v1::JobEvent event;
  ASSERT_TRUE(reader->Read(&event));
  ASSERT_TRUE(event.has_snapshot());
  EXPECT_EQ(event.sequence(), 0);
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.sequence(), 1);
  ASSERT_TRUE(event.has_state());
  EXPECT_EQ(event.state().to(), v1::JOB_STATE_PLANNING);
  v1::CancelJobRequest cancel;
  cancel.set_name(job.name());
  grpc::ClientContext context2;
  ASSERT_TRUE(jobs_->CancelJob(&context2, cancel, &job).ok());
  std::int64_t last = event.sequence();
  v1::JobState state = event.state().to();
  while (reader->Read(&event)) {
    EXPECT_EQ(event.sequence(), last + 1);
    last = event.sequence();
    if (event.has_state()) state = event.state().to();
  }
  const auto status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(state, v1::JOB_STATE_CANCELLED);

  // Events that were seen are not sent again.
  request.set_after_sequence(last);
  grpc::ClientContext context3;
  auto again = jobs_->WatchJob(&context3, request);
  int events = 0;
  while (again->Read(&event)) events += event.has_snapshot() ? 0 : 1;
  EXPECT_TRUE(again->Finish().ok());
  EXPECT_EQ(events, 0);
}

TEST_F(FineTuneServiceTest, PagesOfEventsEndWithTheLastEvent) {
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
  ASSERT_GE(all.events_size(), 2);
  EXPECT_EQ(all.next_page_token(), "");
  for (const int size : {1, all.events_size()}) {
    request.set_page_size(size);
    request.clear_page_token();
    int events = 0;
    do {
      v1::ListJobEventsResponse page;
      ASSERT_TRUE(Call(jobs_, &Stub::ListJobEvents, request, &page).ok());
      ASSERT_EQ(page.events_size(), size);
      events += page.events_size();
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    EXPECT_EQ(events, all.events_size());
  }
  request.set_after_sequence(-1);
  v1::ListJobEventsResponse none;
  const auto status = Call(jobs_, &Stub::ListJobEvents, request, &none);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(FieldOf(status), "after_sequence");
}

// A page ends before its bytes exceed what the server may send, however large its rows are.
class SmallJobAnswersTest : public FineTuneServiceTest {
 protected:
  static constexpr int kMostBytes = 16 << 10;
  AppOptions Options() override {
    AppOptions options = FineTuneServiceTest::Options();
    options.max_send_bytes = kMostBytes;
    return options;
  }
};

TEST_F(SmallJobAnswersTest, PagesLimitedByBytesCoverTheWholeList) {
  std::vector<std::string> wanted;
  v1::Job job;
  for (int i = 0; i < 12; ++i) {
    v1::CreateJobRequest request = TinyJob();
    request.mutable_spec()->mutable_publish()->set_output_model("out" + std::to_string(i));
    for (int k = 0; k < 16; ++k)
      (*request.mutable_spec()->mutable_labels())["key" + std::to_string(k)] = std::string(200, 'x');
    const auto status = Create(request, &job);
    ASSERT_TRUE(status.ok()) << status.error_message();
    wanted.insert(wanted.begin(), job.name());
  }
  ASSERT_GT(12 * job.ByteSizeLong(), 2u * kMostBytes);
  std::vector<std::string> joined;
  const auto pages = Pages({}, 1000);
  EXPECT_GT(pages.size(), 2u);
  EXPECT_GT(pages[0].size(), 1u);
  for (const auto& page : pages) {
    EXPECT_FALSE(page.empty());
    joined.insert(joined.end(), page.begin(), page.end());
  }
  EXPECT_EQ(joined, wanted);
}

TEST_F(FineTuneServiceTest, UnknownJobsAreNotFound) {
  v1::GetJobRequest get;
  get.set_name("job-none");
  v1::Job job;
  grpc::ClientContext context;
  EXPECT_EQ(ReasonOf(jobs_->GetJob(&context, get, &job)), "JOB");
  v1::WatchJobRequest watch;
  watch.set_name("job-none");
  grpc::ClientContext context2;
  auto reader = jobs_->WatchJob(&context2, watch);
  v1::JobEvent event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(ReasonOf(reader->Finish()), "JOB");
}

}  // namespace
}  // namespace nibble
