#include "server/telemetry/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/base/strings.h"
#include "tests/support/exposition.h"
#include "tests/support/metric_labels.h"

namespace nibble::telemetry {
namespace {

using ::testing::HasSubstr;

// "name{labels}" -> value. Fails the test for a line that is neither a comment nor a sample, and for a repeated sample.
std::map<std::string, double> Samples(const std::string& text) {
  std::map<std::string, double> samples;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.empty() || line[0] == '#') continue;
    const auto space = line.rfind(' ');
    if (space == std::string::npos) {
      ADD_FAILURE() << "no sample: " << line;
      continue;
    }
    EXPECT_TRUE(samples.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second)
        << "duplicate: " << line;
  }
  return samples;
}

TEST(MetricsTest, KnownSeriesExistWithZeroBeforeAnythingHappens) {
  Metrics metrics({"1.2", "abc", "none", "c0de"}, {.job_states = {"QUEUED", "RUNNING"}});
  const auto samples = Samples(metrics.Scrape());
  for (const char* name :
       {"nibble_kernel_launches_total{device=\"cpu\",kernel=\"quantize_int8\",phase=\"serve\"}",
        "nibble_kernel_launches_total{device=\"cpu\",kernel=\"matmul_int8\",phase=\"train\"}",
        "nibble_jobs{method=\"qlora\",state=\"QUEUED\"}", "nibble_jobs_created_total{method=\"qlora\"}",
        "nibble_peak_memory_bytes{device=\"cpu\",process=\"trainer\"}"}) {
    ASSERT_TRUE(samples.contains(name)) << name;
    EXPECT_EQ(samples.at(name), 0) << name;
  }
  EXPECT_GT(samples.at("nibble_peak_memory_bytes{device=\"cpu\",process=\"server\"}"), 1e6);
  EXPECT_GT(samples.at("process_resident_memory_bytes"), 1e6);
}

TEST(MetricsTest, HistogramOfAnRpcBeginsAtZeroWithItsFirstCall) {
  const std::string calls = "{grpc_method=\"m\",grpc_service=\"s\",grpc_type=\"unary\"}";
  Metrics metrics({}, {});
  metrics.RpcKnown("unary", "s", "m");
  std::string text = metrics.Scrape();
  EXPECT_EQ(Samples(text).at("grpc_server_started_total" + calls), 0);
  EXPECT_THAT(text, ::testing::Not(HasSubstr("grpc_server_handling_seconds_count")));
  metrics.RpcStarted("unary", "s", "m");
  EXPECT_EQ(Samples(metrics.Scrape()).at("grpc_server_handling_seconds_count" + calls), 0);
  metrics.RpcHandled("unary", "s", "m", "OK", 0.5);
  EXPECT_EQ(Samples(metrics.Scrape()).at("grpc_server_handling_seconds_count" + calls), 1);
}

TEST(MetricsTest, RequestsOfClientsAreCountedByProtocolFromZero) {
  Metrics metrics({}, {});
  const auto count = [&](const std::string& protocol) {
    return Samples(metrics.Scrape()).at("nibble_client_requests_total{protocol=\"" + protocol + "\"}");
  };
  for (const char* protocol : {"grpc", "kserve", "openai"}) EXPECT_EQ(count(protocol), 0) << protocol;
  metrics.ClientRequest("grpc");
  metrics.ClientRequest("kserve");
  metrics.ClientRequest("kserve");
  metrics.OpenAiRequests("/v1/models", 0);
  EXPECT_EQ(count("openai"), 0) << "a series was created, no request came";
  metrics.OpenAiRequests("/v1/models", 1);
  EXPECT_EQ(count("grpc"), 1);
  EXPECT_EQ(count("kserve"), 2);
  EXPECT_EQ(count("openai"), 1);
}

TEST(MetricsTest, AnswersOfOpenAiAreCountedByStatus) {
  Metrics metrics({}, {});
  EXPECT_THAT(metrics.Scrape(), ::testing::Not(HasSubstr("nibble_openai_answers_total{"))) << "there is no listener";
  metrics.OpenAiRequests("/v1/models", 0);
  const std::string good = "nibble_openai_answers_total{route=\"/v1/models\",status=\"200\"}";
  const std::string bad = "nibble_openai_answers_total{route=\"/v1/models\",status=\"401\"}";
  auto samples = Samples(metrics.Scrape());
  EXPECT_EQ(samples.at(good), 0);
  EXPECT_FALSE(samples.contains(bad)) << "an error's series begins with the first error";
  metrics.OpenAiAnswer("/v1/models", 401);
  metrics.OpenAiAnswer("/v1/models", 200);
  samples = Samples(metrics.Scrape());
  EXPECT_EQ(samples.at(good), 1);
  EXPECT_EQ(samples.at(bad), 1);
}

// A rate needs two values: the first job's duration would be lost if its series began with it.
TEST(MetricsTest, HistogramsOfAMethodBeginAtZeroWithItsFirstJob) {
  const std::string durations = "nibble_job_duration_seconds_count{method=\"full\",result=\"FAILED\"}";
  const std::string steps = "nibble_train_step_duration_seconds_count{method=\"full\"}";
  const std::string lost = "nibble_job_attempts_total{method=\"full\",reason=\"LOST\"}";
  const KnownLabels known{.job_methods = {"full", "lora"}, .job_states = {}};
  Metrics metrics({}, known);
  EXPECT_THAT(metrics.Scrape(), ::testing::Not(HasSubstr("nibble_job_duration_seconds_count")));
  metrics.JobCreated("full");
  const auto samples = Samples(metrics.Scrape());
  for (const std::string& name : {durations, steps, lost}) {
    ASSERT_TRUE(samples.contains(name)) << name;
    EXPECT_EQ(samples.at(name), 0) << name;
  }
  EXPECT_THAT(metrics.Scrape(), ::testing::Not(HasSubstr("_duration_seconds_count{method=\"lora\"")));
  metrics.JobAttempt("full", "LOST");
  EXPECT_EQ(Samples(metrics.Scrape()).at(lost), 1);

  Metrics restarted({}, known);
  restarted.JobAttempt("full", "start");  // of a job that an earlier process created
  EXPECT_TRUE(Samples(restarted.Scrape()).contains(durations));
}

TEST(MetricsTest, KernelLaunchesFollowTheCounterAndNeverFall) {
  Metrics metrics({}, {});
  const std::string name = "nibble_kernel_launches_total{device=\"cpu\",kernel=\"matmul_int8\",phase=\"serve\"}";
  metrics.SetKernelLaunches("serve", "cpu", {{"matmul_int8", 7}});
  EXPECT_EQ(Samples(metrics.Scrape()).at(name), 7);
  metrics.SetKernelLaunches("serve", "cpu", {{"matmul_int8", 9}});
  metrics.SetKernelLaunches("serve", "cpu", {{"matmul_int8", 3}});
  EXPECT_EQ(Samples(metrics.Scrape()).at(name), 9);
  metrics.AddKernelLaunches("train", "cpu", "torch:mm", 5);
  metrics.AddKernelLaunches("train", "cpu", "torch:mm", 6);
  EXPECT_EQ(
      Samples(metrics.Scrape()).at("nibble_kernel_launches_total{device=\"cpu\",kernel=\"torch:mm\",phase=\"train\"}"),
      11);
}

TEST(MetricsTest, TokensAreCountedByModelAndSchedulerStateIsAGauge) {
  Metrics metrics({}, {});
  metrics.TokensGenerated("m", 3);
  metrics.TokensGenerated("m", 1);
  metrics.SetScheduler("m", {.running = 2, .kv_blocks_used = 5, .kv_blocks = 8});
  metrics.GenerateEnded("m", "eos", {.prompt_tokens = 7});
  auto samples = Samples(metrics.Scrape());
  EXPECT_EQ(samples.at("nibble_generated_tokens_total{model=\"m\"}"), 4);
  EXPECT_EQ(samples.at("nibble_prompt_tokens_total{model=\"m\"}"), 7);
  EXPECT_EQ(samples.at("nibble_requests_running{model=\"m\"}"), 2);
  EXPECT_EQ(samples.at("nibble_kv_cache_used_blocks{model=\"m\"}"), 5);
  metrics.SetScheduler("m", {});  // unloaded
  samples = Samples(metrics.Scrape());
  EXPECT_EQ(samples.at("nibble_requests_running{model=\"m\"}"), 0);
  EXPECT_EQ(samples.at("nibble_generated_tokens_total{model=\"m\"}"), 4);
}

// A scrape must not depend on the scrapes before it, because they may come from another Prometheus.
TEST(MetricsTest, SecondScraperSeesTheSameServingSeries) {
  Metrics metrics({}, {});
  metrics.AddCollector([](Metrics& out) { out.SetScheduler("m", {.running = 1}); });
  metrics.TokensGenerated("m", 8);
  const auto serving = [&] {
    auto samples = Samples(metrics.Scrape());
    std::erase_if(samples, [](const auto& sample) { return sample.first.find("model=\"m\"") == std::string::npos; });
    return samples;
  };
  const auto first = serving();
  EXPECT_EQ(first.at("nibble_generated_tokens_total{model=\"m\"}"), 8);
  EXPECT_EQ(serving(), first);
}

TEST(MetricsTest, PreemptionsNeverFall) {
  Metrics metrics({}, {});
  metrics.SetPreemptions(0);
  EXPECT_EQ(Samples(metrics.Scrape()).at("nibble_preemptions_total"), 0);
  for (const std::uint64_t count : {3u, 2u, 5u}) metrics.SetPreemptions(count);
  EXPECT_EQ(Samples(metrics.Scrape()).at("nibble_preemptions_total"), 5);
}

TEST(MetricsTest, ModelNamesBeyondTheLimitShareOneSeries) {
  Metrics metrics({}, {});
  for (std::size_t i = 0; i < Metrics::kMaxModelLabels + 5; ++i) metrics.ModelLoaded(base::StrCat("m", i), 1);
  const auto samples = Samples(metrics.Scrape());
  EXPECT_EQ(samples.at("nibble_model_load_duration_seconds_count{model=\"other\"}"), 5);
  EXPECT_EQ(samples.at("nibble_model_load_duration_seconds_count{model=\"m0\"}"), 1);
}

// C16 (docs/faults.md)
TEST(MetricsTest, SeriesOfADeletedModelAreRemovedAfterOneMoreScrape) {
  Metrics metrics({}, {});
  const std::string_view kept = "kept", deleted = "deleted";
  for (const std::string_view model : {kept, deleted}) {
    metrics.SetScheduler(model, {.waiting = 1});
    metrics.TokensGenerated(model, 3);
    metrics.GenerateEnded(model, "stop",
                          {.ttft_seconds = 1, .decode_seconds = 1, .prompt_tokens = 2, .completion_tokens = 3});
    metrics.GenerateEnded(model, "cancelled", {});
    metrics.ModelLoaded(model, 1);
    metrics.SetTrainerDifference(model, 0.001);
  }
  metrics.KeepModels({"deleted", "kept"});
  metrics.KeepModels({"kept"});
  EXPECT_EQ(Samples(metrics.Scrape()).at("nibble_generated_tokens_total{model=\"deleted\"}"), 3);
  metrics.KeepModels({"kept"});
  std::string text = metrics.Scrape();
  EXPECT_THAT(text, ::testing::Not(HasSubstr("model=\"deleted\"")));
  EXPECT_EQ(Samples(text).at("nibble_generated_tokens_total{model=\"kept\"}"), 3);

  for (std::size_t i = 0; i < 3 * Metrics::kMaxModelLabels; ++i) {
    const std::string model = base::StrCat("m", i);
    metrics.ModelLoaded(model, 1);
    metrics.KeepModels({"kept", model});
  }
  text = metrics.Scrape();
  EXPECT_THAT(text, ::testing::Not(HasSubstr("model=\"other\"")));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("model=\"m7\"")));
}

TEST(MetricsTest, SeriesOfARemovedModelBeginAtZeroAgain) {
  Metrics metrics({}, {});
  metrics.TokensGenerated("m", 3);
  metrics.KeepModels({});
  metrics.KeepModels({"m"});  // made again before the series were removed
  metrics.TokensGenerated("m", 1);
  EXPECT_EQ(Samples(metrics.Scrape()).at("nibble_generated_tokens_total{model=\"m\"}"), 4);
  metrics.KeepModels({});
  metrics.KeepModels({});
  metrics.TokensGenerated("m", 1);
  EXPECT_EQ(Samples(metrics.Scrape()).at("nibble_generated_tokens_total{model=\"m\"}"), 1);
}

// ThreadSanitizer and AddressSanitizer would report a series that is removed while it is used.
TEST(MetricsTest, SeriesCanBeRemovedWhileTheyAreUsed) {
  Metrics metrics({}, {});
  std::atomic<bool> stop = false;
  std::thread user([&] {
    while (!stop) {
      metrics.TokensGenerated("m", 1);
      metrics.GenerateEnded("m", "stop",
                            {.ttft_seconds = 1, .decode_seconds = 1, .prompt_tokens = 2, .completion_tokens = 3});
    }
  });
  for (int i = 0; i < 500; ++i) metrics.KeepModels({});
  stop = true;
  user.join();
  metrics.KeepModels({});
  metrics.KeepModels({});
  EXPECT_THAT(metrics.Scrape(), ::testing::Not(HasSubstr("model=\"m\"")));
}

TEST(MetricsTest, StepUpdatesEveryTrainSeries) {
  Metrics metrics({}, {});
  metrics.TrainStep("qlora", "job-1", {.tokens = 100, .seconds = 0.5, .loss = 2.25, .tokens_per_s = 200});
  metrics.TrainStep("qlora", "job-1", {.tokens = 50, .seconds = 0.5, .loss = 2.0, .tokens_per_s = 100});
  const auto samples = Samples(metrics.Scrape());
  EXPECT_EQ(samples.at("nibble_train_tokens_total{method=\"qlora\"}"), 150);
  EXPECT_EQ(samples.at("nibble_job_steps_total{method=\"qlora\"}"), 2);
  EXPECT_EQ(samples.at("nibble_train_loss{job_id=\"job-1\",method=\"qlora\"}"), 2.0);
  EXPECT_EQ(samples.at("nibble_train_tokens_per_second{method=\"qlora\"}"), 100);
  EXPECT_EQ(samples.at("nibble_train_step_duration_seconds_count{method=\"qlora\"}"), 2);
}

TEST(MetricsTest, EachJobHasItsLossUntilItsAttemptEnds) {
  Metrics metrics({}, {});
  const std::string one = "nibble_train_loss{job_id=\"job-1\",method=\"qlora\"}";
  const std::string two = "nibble_train_loss{job_id=\"job-2\",method=\"qlora\"}";
  metrics.TrainStep("qlora", "job-1", {.loss = 3});
  metrics.TrainStep("qlora", "job-2", {.loss = 5});
  metrics.TrainStep("qlora", "job-1", {.loss = 2});
  auto samples = Samples(metrics.Scrape());
  EXPECT_EQ(samples.at(one), 2);
  EXPECT_EQ(samples.at(two), 5);
  metrics.TrainingEnded("job-1");
  metrics.TrainingEnded("job-1");
  metrics.TrainingEnded("a job without a step");
  samples = Samples(metrics.Scrape());
  EXPECT_FALSE(samples.contains(one));
  EXPECT_EQ(samples.at(two), 5);
  metrics.TrainStep("qlora", "job-1", {.loss = 1});  // the next attempt
  EXPECT_EQ(Samples(metrics.Scrape()).at(one), 1);
}

TEST(MetricsTest, TrainingRateIsZeroOnceNoJobOfTheMethodTrains) {
  Metrics metrics({}, {});
  const std::string rate = "nibble_train_tokens_per_second{method=\"qlora\"}";
  const std::string other = "nibble_train_tokens_per_second{method=\"full\"}";
  metrics.TrainStep("qlora", "job-1", {.tokens_per_s = 100});
  metrics.TrainStep("qlora", "job-2", {.tokens_per_s = 200});
  metrics.TrainStep("full", "job-3", {.tokens_per_s = 300});
  metrics.TrainingEnded("job-2");
  EXPECT_EQ(Samples(metrics.Scrape()).at(rate), 200) << "job-1 still trains";
  metrics.TrainingEnded("job-1");
  EXPECT_EQ(Samples(metrics.Scrape()).at(rate), 0);
  EXPECT_EQ(Samples(metrics.Scrape()).at(other), 300);
  metrics.TrainStep("qlora", "job-1", {.tokens_per_s = 50});  // the next attempt
  EXPECT_EQ(Samples(metrics.Scrape()).at(rate), 50);
}

TEST(MetricsTest, TokenFileSeriesExistsOnlyWithATokenFile) {
  Metrics metrics({}, {});
  EXPECT_THAT(metrics.Scrape(), ::testing::Not(HasSubstr("nibble_token_file_ok ")));
  metrics.SetTokenFileOk(true);
  EXPECT_EQ(Samples(metrics.Scrape()).at("nibble_token_file_ok"), 1);
  metrics.SetTokenFileOk(false);
  EXPECT_EQ(Samples(metrics.Scrape()).at("nibble_token_file_ok"), 0);
}

TEST(MetricsTest, TlsSeriesExistOnlyWithTlsFiles) {
  Metrics metrics({}, {});
  EXPECT_THAT(metrics.Scrape(), ::testing::Not(HasSubstr("nibble_tls_files_ok ")));
  metrics.SetTlsFilesOk(true);
  metrics.SetCertificateExpiry("server", 5);
  metrics.SetCertificateExpiry("client_ca", 7);
  const auto samples = Samples(metrics.Scrape());
  EXPECT_EQ(samples.at("nibble_tls_files_ok"), 1);
  EXPECT_EQ(samples.at("nibble_tls_certificate_expiry_timestamp_seconds{file=\"server\"}"), 5);
  EXPECT_EQ(samples.at("nibble_tls_certificate_expiry_timestamp_seconds{file=\"client_ca\"}"), 7);
  metrics.SetTlsFilesOk(false);
  EXPECT_EQ(Samples(metrics.Scrape()).at("nibble_tls_files_ok"), 0);
}

TEST(MetricsTest, LabelValuesAreEscaped) {
  Metrics metrics({}, {});
  metrics.Rejected("a\"b\\c\nd");
  EXPECT_THAT(metrics.Scrape(), HasSubstr("nibble_rejected_total{reason=\"a\\\"b\\\\c\\nd\"} 1"));
}

TEST(MetricsTest, ScrapesMayRunWhileOthersWrite) {
  Metrics metrics({}, {});
  std::vector<std::thread> writers;
  for (int w = 0; w < 3; ++w) {
    writers.emplace_back([&] {
      for (int i = 0; i < 500; ++i) metrics.RpcHandled("unary", "s", "m", i % 2 ? "OK" : "INTERNAL", 0.01);
    });
  }
  for (int i = 0; i < 20; ++i) EXPECT_THAT(metrics.Scrape(), HasSubstr("nibble_build_info"));
  for (auto& writer : writers) writer.join();
  const auto samples = Samples(metrics.Scrape());
  EXPECT_EQ(samples.at(
                "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"m\",grpc_service=\"s\",grpc_type=\"unary\"}"),
            750);
}

// Line breaks, quotes, backslashes, terminal escapes, NUL and invalid UTF-8.
const std::vector<std::string>& Hostile() {
  static const auto* texts =
      new std::vector<std::string>{"a\"} 1\nfake_total 5", "\\",    "\\\"",        "\\n",      "\r\n", "\x1b[31m",
                                   std::string("a\0b", 3), "{}#=,", "caf\xc3\xa9", "\xff\xfe", "\xc3", ""};
  return *texts;
}

// S11: the exposition is valid for every label value.
TEST(MetricsTest, S11ExpositionIsValidForAnyLabelText) {
  Metrics metrics({"1", "c", "none"}, {.job_states = {"QUEUED"}});
  EXPECT_EQ(testing_support::ExpositionFault(metrics.Scrape()), "");
  for (const std::string& text : Hostile()) {
    metrics.GenerateEnded(text, "eos", {.ttft_seconds = 0.1, .decode_seconds = 1, .completion_tokens = 10});
    metrics.Rejected(text);
    EXPECT_EQ(testing_support::ExpositionFault(metrics.Scrape()), "") << text;
  }
  EXPECT_THAT(metrics.Scrape(), ::testing::Not(HasSubstr("\nfake_total")));
  EXPECT_THAT(metrics.Scrape(), HasSubstr("nibble_rejected_total{reason=\"a\xef\xbf\xbd"
                                          "b\"} 1\n"))
      << "a NUL is replaced";
}

TEST(ExpositionTest, FindsFaults) {
  EXPECT_EQ(testing_support::ExpositionFault(
                "# HELP a b \\\\ c\n# TYPE a counter\na{b=\"c\\\"d\\n\",e=\"\"} 1.5e3\na +Inf\n"),
            "");
  for (const char* bad :
       {"", "a 1", "a\n", "a \n", "a b\n", "a 1 x\n", "1a 1\n", "a{b=c} 1\n", "a{b=\"c} 1\n", "a{b=\"c\"x} 1\n",
        "a{b=\"\\t\"} 1\n", "a{=\"c\"} 1\n", "a  1\n", "a 1\na 2\n", "# TYPE a thing\n",
        "# TYPE a gauge\n# TYPE a counter\n", "# note\n", "a{b=\"\xff\"} 1\n", "a{b=\"c\"\n"}) {
    EXPECT_NE(testing_support::ExpositionFault(bad), "") << bad;
  }
}

bool HasPromtool() { return std::system("promtool --version > /dev/null 2>&1") == 0; }

// The exit status and the output of `promtool check metrics` for an exposition.
std::pair<int, std::string> PromtoolSays(const std::string& exposition) {
  const std::string path = base::StrCat(::testing::TempDir(), "/metrics_", getpid(), ".txt");
  std::ofstream(path, std::ios::binary) << exposition;
  FILE* pipe = popen(base::StrCat("promtool check metrics < ", path, " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {-1, "no pipe"};
  std::string said;
  char buffer[256];
  while (fgets(buffer, sizeof buffer, pipe) != nullptr) said += buffer;
  const int status = pclose(pipe);
  unlink(path.c_str());
  return {status, said};
}

// Checks names, units and help texts with the tool that operators use.
TEST(MetricsTest, PromtoolReportsNoProblem) {
  if (!HasPromtool()) GTEST_SKIP() << "promtool is not installed";
  Metrics metrics({"1", "c", "none"}, {.job_states = {"QUEUED"}});
  metrics.RpcKnown("unary", "s", "m");
  metrics.GenerateEnded("m", "eos", {.ttft_seconds = 0.1, .decode_seconds = 1, .completion_tokens = 10});
  metrics.SetScheduler("m", {.waiting = 1});
  metrics.ModelLoaded("m", 1);
  metrics.StoreOperation("commit", 0.1);
  metrics.StoreError("DISK_FULL");
  metrics.CheckpointFailed("DISK_FULL");
  metrics.SetDiskFree("state", 1);
  metrics.JobQueueWait(1);
  EXPECT_EQ(PromtoolSays(metrics.Scrape()), std::make_pair(0, std::string()));
}

// Puts hostile text into every label that takes a text from outside this folder.
TEST(MetricsTest, S11PromtoolReportsNoProblemWithHostileLabels) {
  if (!HasPromtool()) GTEST_SKIP() << "promtool is not installed";
  Metrics metrics({"1", "c", "none"}, {.job_states = {"QUEUED"}});
  for (const std::string& text : Hostile()) testing_support::TouchEveryLabel(metrics, text, text, text);
  const std::string exposition = metrics.Scrape();
  EXPECT_EQ(PromtoolSays(exposition), std::make_pair(0, std::string()));
  EXPECT_EQ(testing_support::ExpositionFault(exposition), "") << "promtool accepts a NUL, Prometheus does not";
  // Counter-check: promtool rejects these values if they are not escaped.
  for (const char* bad : {"a\"b", "a\nb", "a\\b",
                          "a\xff"
                          "b"}) {
    const std::string text =
        base::StrCat("# HELP nibble_x_total x\n# TYPE nibble_x_total counter\nnibble_x_total{a=\"", bad, "\"} 1\n");
    EXPECT_NE(PromtoolSays(text).first, 0) << bad;
  }
}

}  // namespace
}  // namespace nibble::telemetry
