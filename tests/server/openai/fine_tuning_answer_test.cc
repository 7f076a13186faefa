#include "server/openai/fine_tuning_answer.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "google/rpc/error_details.pb.h"

namespace nibble::openai {
namespace {

using base::Json;

template <typename Message>
Message Parsed(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

TEST(FineTuningAnswerTest, EveryStateHasAStatusOfOpenAi) {
  const std::map<v1::JobState, std::string> wanted = {{v1::JOB_STATE_PLANNING, "validating_files"},
                                                      {v1::JOB_STATE_QUEUED, "queued"},
                                                      {v1::JOB_STATE_PREPARING, "running"},
                                                      {v1::JOB_STATE_RUNNING, "running"},
                                                      {v1::JOB_STATE_PAUSING, "running"},
                                                      {v1::JOB_STATE_PAUSED, "queued"},
                                                      {v1::JOB_STATE_CANCELLING, "running"},
                                                      {v1::JOB_STATE_SUCCEEDED, "succeeded"},
                                                      {v1::JOB_STATE_FAILED, "failed"},
                                                      {v1::JOB_STATE_CANCELLED, "cancelled"}};
  for (int state = v1::JobState_MIN + 1; state <= v1::JobState_MAX; ++state) {
    ASSERT_TRUE(wanted.contains(static_cast<v1::JobState>(state))) << v1::JobState_Name(state) << " has no row here";
    EXPECT_EQ(JobStatus(static_cast<v1::JobState>(state)), wanted.at(static_cast<v1::JobState>(state)));
  }
}

TEST(FineTuningAnswerTest, JobOfOtherClientsHasNullWhereOpenAiHasNoForm) {
  const Json job = JobJson(Parsed<v1::Job>(R"pb(
    name: "job-1"
    state: JOB_STATE_RUNNING
    output_model: "out"
    create_time { seconds: 10 }
    spec {
      base_model: "m"
      train_dataset: "d"
      run { epochs: 0.5 seed: 3 }
    }
    progress {
      tokens: 7
      eta { seconds: 5 }
      update_time { seconds: 20 }
    })pb"));
  EXPECT_EQ(job["id"], "job-1");
  EXPECT_EQ(job["hyperparameters"]["n_epochs"], nullptr);
  EXPECT_EQ(job["fine_tuned_model"], nullptr) << "there is no model yet";
  EXPECT_EQ(job["trained_tokens"], nullptr);
  EXPECT_EQ(job["estimated_finish"], 25);
  EXPECT_EQ(job["validation_file"], nullptr);
  EXPECT_EQ(job["error"], nullptr);
  EXPECT_EQ(job["seed"], 3);
  EXPECT_EQ(job["nibble"]["state"], "RUNNING");
  EXPECT_EQ(job["nibble"]["output_model"], "out");
  EXPECT_EQ(job["nibble"]["spec"]["run"]["epochs"], 0.5);
}

TEST(FineTuningAnswerTest, FailedJobHasItsError) {
  auto job = Parsed<v1::Job>(R"pb(name: "job-1"
                                  state: JOB_STATE_FAILED
                                  end_time { seconds: 30 }
                                  error { code: 3 message: "data.overlong: row 2 is too long" })pb");
  google::rpc::ErrorInfo info;
  info.set_reason("DATASET_FORMAT");
  job.mutable_error()->add_details()->PackFrom(info);
  google::rpc::BadRequest bad;
  bad.add_field_violations()->set_field("data.overlong");
  job.mutable_error()->add_details()->PackFrom(bad);
  const Json json = JobJson(job);
  EXPECT_EQ(json["status"], "failed");
  EXPECT_EQ(json["finished_at"], 30);
  EXPECT_EQ(json["error"]["code"], "dataset_format");
  EXPECT_EQ(json["error"]["param"], "nibble.data.overlong");
  EXPECT_EQ(json["error"]["message"], "nibble.data.overlong: row 2 is too long");
}

TEST(FineTuningAnswerTest, EveryEventHasAMessage) {
  const std::pair<const char*, const char*> events[] = {
      {"state { to: JOB_STATE_RUNNING }", "The job is RUNNING"},
      {"step { step: 3 loss: 1.5 }", "Step 3: training loss=1.5"},
      {"eval { step: 4 eval_loss: 2.5 subject: EVAL_SUBJECT_INT8 }", "Step 4: int8 validation loss=2.5"},
      {"checkpoint { checkpoint { name: \"job-1/4\" } }", "Checkpoint job-1/4 saved"},
      {"model { model: \"out\" }", "Model out published"},
      {"warning { message: \"rows were cut\" }", "rows were cut"},
      {"log { text: \"a line\" }", "a line"},
  };
  for (const auto& [body, message] : events) {
    const Json json = EventJson(
        "job-1",
        Parsed<v1::JobEvent>(std::string("sequence: 9 time { seconds: 8 } severity: SEVERITY_WARNING ") + body));
    EXPECT_EQ(json["message"], message);
    EXPECT_EQ(json["id"], "ftevent-job-1-9");
    EXPECT_EQ(json["created_at"], 8);
    EXPECT_EQ(json["level"], "warn");
    EXPECT_EQ(json["type"], std::string(message).starts_with("Step") ? "metrics" : "message");
  }
}

TEST(FineTuningAnswerTest, CursorsOfOtherObjectsAreRefused) {
  EXPECT_EQ(SequenceOf("ftevent-job-1-9", "job-1"), 9);
  EXPECT_EQ(StepOf("job-1/40", "job-1"), 40);
  for (const char* id : {"", "ftevent-job-1-", "ftevent-job-1-x", "ftevent-job-1-0", "ftevent-job-2-9", "job-1/40",
                         "ftevent-job-1-99999999999999999999"}) {
    EXPECT_EQ(SequenceOf(id, "job-1"), std::nullopt) << id;
  }
  EXPECT_EQ(StepOf("job-2/40", "job-1"), std::nullopt);
}

TEST(FineTuningAnswerTest, CheckpointHasOnlyItsMetrics) {
  const Json json = CheckpointJson(Parsed<v1::Checkpoint>(R"pb(
    name: "job-1/4"
    step: 4
    job: "job-1"
    create_time { seconds: 3 }
    metrics { key: "loss" value: 1.5 })pb"));
  EXPECT_EQ(json["metrics"], (Json{{"step", 4}, {"train_loss", 1.5}}));
  EXPECT_EQ(json["fine_tuning_job_id"], "job-1");
}

}  // namespace
}  // namespace nibble::openai
