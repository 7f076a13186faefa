#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "server/base/files.h"
#include "server/base/json.h"
#include "server/base/sha256.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/tiny_job.h"
#include "tests/support/soon.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using testing_support::AppTest;
using testing_support::FieldOf;
using testing_support::kTinyTexts;
using testing_support::ReasonOf;
using testing_support::TinyJob;

class DatasetServiceTest : public AppTest {
 protected:
  grpc::Status Upload(const std::string& name, const std::string& bytes, v1::DatasetFormat format, v1::Dataset* dataset,
                      bool finish = true, std::optional<std::int64_t> size_bytes = std::nullopt) {
    v1::UploadDatasetHeader header;
    header.set_name(name);
    header.set_format(format);
    if (size_bytes.has_value()) header.set_size_bytes(*size_bytes);
    return AppTest::Upload(header, bytes, dataset, finish);
  }
};

TEST_F(DatasetServiceTest, RowsAreCountedAndTheFormatIsFound) {
  v1::Dataset dataset;
  const std::string bytes =
      "{\"prompt\": \"a\", \"completion\": \"b\"}\n\n{\"prompt\": \"c\", \"completion\": \"d\"}\n";
  const auto status = Upload("pairs", bytes, v1::DATASET_FORMAT_UNSPECIFIED, &dataset);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(dataset.format(), v1::DATASET_FORMAT_PROMPT_COMPLETION);
  EXPECT_EQ(dataset.rows(), 2);
  EXPECT_EQ(dataset.bytes(), static_cast<std::int64_t>(bytes.size()));
  EXPECT_EQ(dataset.sha256(), base::Sha256Hex(bytes));
  EXPECT_GT(dataset.create_time().seconds(), 0);
  EXPECT_FALSE(dataset.etag().empty());
  v1::GetDatasetRequest get;
  get.set_name("pairs");
  v1::Dataset read;
  const auto found = Call(datasets_, &v1::DatasetService::Stub::GetDataset, get, &read);
  ASSERT_TRUE(found.ok()) << found.error_message();
  EXPECT_EQ(read.name(), "pairs");
  EXPECT_EQ(read.name(), dataset.name());
  EXPECT_EQ(read.format(), dataset.format());
  EXPECT_EQ(read.rows(), dataset.rows());
  EXPECT_EQ(read.bytes(), dataset.bytes());
  EXPECT_EQ(read.sha256(), dataset.sha256());
  EXPECT_EQ(read.create_time().seconds(), dataset.create_time().seconds());
  EXPECT_EQ(read.create_time().nanos(), dataset.create_time().nanos());
  EXPECT_EQ(read.etag(), dataset.etag());
}

TEST_F(DatasetServiceTest, ABadLineIsNamedAndNothingIsKept) {
  v1::Dataset dataset;
  const auto status = Upload("bad", "{\"text\": \"a\"}\n{\"text\": 5}\n", v1::DATASET_FORMAT_TEXT, &dataset);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(status), "DATASET_FORMAT");
  EXPECT_EQ(FieldOf(status), "line 2");
  v1::GetDatasetRequest get;
  get.set_name("bad");
  grpc::ClientContext context;
  EXPECT_EQ(ReasonOf(datasets_->GetDataset(&context, get, &dataset)), "DATASET");
}

TEST_F(DatasetServiceTest, ConversationOfTooManyMessagesIsRefusedByLine) {
  std::string line = R"({"messages": [{"role": "assistant", "content": "a"})";
  for (int i = 0; i < 1024; ++i) line += R"(, {"role": "assistant", "content": "a"})";
  v1::Dataset dataset;
  const auto status =
      Upload("chats", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}\n" + line + "]}\n",
             v1::DATASET_FORMAT_CHAT, &dataset);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(status), "DATASET_FORMAT");
  EXPECT_EQ(FieldOf(status), "line 2");
  EXPECT_THAT(status.error_message(), HasSubstr("has 1025 messages, wanted at most 1024"));
}

TEST_F(DatasetServiceTest, EmptyAndCutStreamsAreRefused) {
  v1::Dataset dataset;
  EXPECT_EQ(ReasonOf(Upload("empty", "", v1::DATASET_FORMAT_TEXT, &dataset)), "DATASET_EMPTY");
  EXPECT_EQ(ReasonOf(Upload("blank", "\n \n", v1::DATASET_FORMAT_TEXT, &dataset)), "DATASET_EMPTY");
  EXPECT_EQ(FieldOf(Upload("cut", "{\"text\": \"a\"}\n", v1::DATASET_FORMAT_TEXT, &dataset, /*finish=*/false)),
            "message");
  EXPECT_EQ(FieldOf(Upload("a/b", "{\"text\": \"a\"}\n", v1::DATASET_FORMAT_TEXT, &dataset)), "header.name");
}

TEST_F(DatasetServiceTest, SizeAnnouncedInTheHeaderIsChecked) {
  v1::Dataset dataset;
  const std::string bytes = "{\"text\": \"a\"}\n";
  EXPECT_EQ(FieldOf(Upload("d", bytes, v1::DATASET_FORMAT_TEXT, &dataset, /*finish=*/true, -1)), "header.size_bytes");
  const std::int64_t limit = Options().max_dataset_bytes;
  EXPECT_EQ(ReasonOf(Upload("d", bytes, v1::DATASET_FORMAT_TEXT, &dataset, /*finish=*/true, limit + 1)),
            "UPLOAD_TOO_LARGE");
  const auto size = static_cast<std::int64_t>(bytes.size());
  EXPECT_TRUE(Upload("d", bytes, v1::DATASET_FORMAT_TEXT, &dataset, /*finish=*/true, size).ok());
}

// For bytes that do not fit into one chunk, which has at most 1 MiB.
grpc::Status UploadInTwoChunks(v1::DatasetService::Stub& datasets, const v1::UploadDatasetHeader& header,
                               const std::string& bytes, v1::Dataset* dataset) {
  grpc::ClientContext context;
  auto writer = datasets.UploadDataset(&context, dataset);
  v1::UploadDatasetRequest message;
  *message.mutable_header() = header;
  writer->Write(message);
  for (const std::string& chunk : {bytes.substr(0, bytes.size() / 2), bytes.substr(bytes.size() / 2)}) {
    message.set_chunk(chunk);
    writer->Write(message);
  }
  message.mutable_finish()->set_sha256(base::Sha256Hex(bytes));
  writer->Write(message);
  writer->WritesDone();
  return writer->Finish();
}

TEST_F(DatasetServiceTest, APlainTextIsOneRow) {
  v1::Dataset dataset;
  const std::string text = "Once upon a time\nthere was a \"quote\".\n";
  const auto status = Upload("book", text, v1::DATASET_FORMAT_TEXT, &dataset);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(dataset.rows(), 1);
  EXPECT_EQ(dataset.bytes(), static_cast<std::int64_t>(text.size()));
  EXPECT_EQ(dataset.sha256(), base::Sha256Hex(text));
  // A longer text is written in pieces, which must not end within a character.
  std::string large((1 << 20) - 10, ' ');  // pieces have 1 MiB
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = "a\"\n\x01"[i % 4];
  for (int i = 0; i < 10'000; ++i) large += "\u4f60";
  v1::UploadDatasetHeader header;
  header.set_name("large");
  header.set_format(v1::DATASET_FORMAT_TEXT);
  ASSERT_TRUE(UploadInTwoChunks(*datasets_, header, large, &dataset).ok());
  base::Json row = base::Json::object();
  row["text"] = large;
  const auto stored = base::RealFileSystem().Read(Options().state_dir + "/datasets/large/data.jsonl", 100 << 20);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_TRUE(*stored == base::Dump(row) + "\n");
  EXPECT_EQ(ReasonOf(Upload("latin", "\xe9t\xe9", v1::DATASET_FORMAT_TEXT, &dataset)), "DATASET_FORMAT");
  // Unless the upload gives the format text, a line that is not JSON is an error.
  EXPECT_EQ(ReasonOf(Upload("maybe", text, v1::DATASET_FORMAT_UNSPECIFIED, &dataset)), "DATASET_FORMAT");
}

TEST_F(DatasetServiceTest, RepeatedUploadIsAnsweredAndOtherContentIsRefused) {
  v1::Dataset dataset;
  ASSERT_TRUE(Upload("d", "{\"text\": \"a\"}\n", v1::DATASET_FORMAT_TEXT, &dataset).ok());
  EXPECT_TRUE(Upload("d", "{\"text\": \"a\"}\n", v1::DATASET_FORMAT_TEXT, &dataset).ok());
  EXPECT_EQ(dataset.rows(), 1);
  EXPECT_EQ(ReasonOf(Upload("d", "{\"text\": \"b\"}\n", v1::DATASET_FORMAT_TEXT, &dataset)), "NAME_TAKEN");
}

TEST_F(DatasetServiceTest, PreviewShowsWhichTokensAreTrained) {
  Import("tiny");
  v1::Dataset dataset;
  ASSERT_TRUE(
      Upload("pairs", "{\"prompt\": \"a b \", \"completion\": \"c d\"}\n", v1::DATASET_FORMAT_UNSPECIFIED, &dataset)
          .ok());
  v1::PreviewDatasetRequest request;
  request.set_dataset("pairs");
  request.set_model("tiny");
  v1::PreviewDatasetResponse response;
  grpc::ClientContext context;
  const auto status = datasets_->PreviewDataset(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.rows_size(), 1);
  const auto& row = response.rows(0);
  EXPECT_EQ(row.row(), 1);
  ASSERT_EQ(row.trained_size(), row.token_ids_size());
  ASSERT_EQ(row.token_texts_size(), row.token_ids_size());
  EXPECT_FALSE(row.trained(0));
  EXPECT_TRUE(row.trained(row.trained_size() - 1));
  EXPECT_GT(response.trainable_tokens(), 0);
  EXPECT_LT(response.trainable_tokens(), response.tokens());
  request.mutable_data()->set_max_seq_len(100'000);
  grpc::ClientContext context2;
  EXPECT_EQ(FieldOf(datasets_->PreviewDataset(&context2, request, &response)), "data.max_seq_len");
  request.set_model("nobody");
  grpc::ClientContext context3;
  EXPECT_EQ(ReasonOf(datasets_->PreviewDataset(&context3, request, &response)), "MODEL");
}

// Without a limit, a dataset whose rows are all dropped would be read to its end.
TEST_F(DatasetServiceTest, PreviewReadsAtMostTenThousandRows) {
  Import("tiny");
  std::string rows;
  for (int i = 0; i < 10'010; ++i) rows += "{\"text\": \"a b c d\"}\n";
  EXPECT_EQ(AppTest::Upload("long", rows).rows(), 10'010);
  v1::PreviewDatasetRequest request;
  request.set_dataset("long");
  request.set_model("tiny");
  request.mutable_data()->set_max_seq_len(2);
  request.mutable_data()->set_overlong(v1::OVERLONG_POLICY_DROP);
  v1::PreviewDatasetResponse response;
  const auto status = Call(datasets_, &v1::DatasetService::Stub::PreviewDataset, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.rows_size(), 0);
  EXPECT_EQ(response.looked_rows(), 10'000);
  EXPECT_EQ(response.dropped_rows(), 10'000);
  EXPECT_EQ(response.total_rows(), 10'010);
}

class SmallAnswersTest : public DatasetServiceTest {
 protected:
  AppOptions Options() override {
    AppOptions options = DatasetServiceTest::Options();
    options.max_send_bytes = 8 << 10;
    return options;
  }
};

TEST_F(SmallAnswersTest, PreviewShowsNoMoreRowsThanFitInAnAnswer) {
  Import("tiny");
  std::string rows;
  for (int i = 0; i < 100; ++i) rows += "{\"text\": \"the keeper of the light walked down to the harbour\"}\n";
  AppTest::Upload("many", rows);
  v1::PreviewDatasetRequest request;
  request.set_dataset("many");
  request.set_model("tiny");
  request.set_n(100);
  v1::PreviewDatasetResponse response;
  const auto status = Call(datasets_, &v1::DatasetService::Stub::PreviewDataset, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(response.rows_size(), 1);
  EXPECT_LT(response.rows_size(), 100);
  EXPECT_EQ(response.looked_rows(), response.rows_size() + 1);
  EXPECT_LE(response.ByteSizeLong(), std::size_t{8} << 10);
}

TEST_F(DatasetServiceTest, PreviewCountsTruncatedDroppedAndSplitRows) {
  Import("tiny");
  v1::Dataset dataset;
  ASSERT_TRUE(Upload("mixed",
                     "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"a b c d\", \"completion\": \" e f g h "
                     "i j k l\"}\n",
                     v1::DATASET_FORMAT_UNSPECIFIED, &dataset)
                  .ok());
  ASSERT_TRUE(Upload("text", "{\"text\": \"a b c d e f g h i j k l\"}\n", v1::DATASET_FORMAT_TEXT, &dataset).ok());
  const auto preview = [&](const std::string& name, v1::OverlongPolicy overlong, std::int32_t length) {
    v1::PreviewDatasetRequest request;
    request.set_dataset(name);
    request.set_model("tiny");
    request.mutable_data()->set_max_seq_len(length);
    if (overlong != v1::OVERLONG_POLICY_UNSPECIFIED) request.mutable_data()->set_overlong(overlong);
    v1::PreviewDatasetResponse response;
    grpc::ClientContext context;
    const auto status = datasets_->PreviewDataset(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  };
  const auto whole = preview("mixed", v1::OVERLONG_POLICY_TRUNCATE, 64);
  ASSERT_EQ(whole.rows_size(), 2);
  EXPECT_EQ(whole.truncated_rows(), 0);
  EXPECT_EQ(whole.rows(1).truncated_tokens(), 0);
  const std::int32_t tokens = whole.rows(1).token_ids_size();
  // A row that fits to the last token is not cut.
  EXPECT_EQ(preview("mixed", v1::OVERLONG_POLICY_TRUNCATE, tokens).truncated_rows(), 0);
  const auto cut = preview("mixed", v1::OVERLONG_POLICY_TRUNCATE, tokens - 2);
  EXPECT_EQ(cut.truncated_rows(), 1);
  EXPECT_EQ(cut.rows(1).truncated_tokens(), 2);
  EXPECT_EQ(cut.rows(1).token_ids_size(), tokens - 2);
  const auto dropped = preview("mixed", v1::OVERLONG_POLICY_DROP, tokens - 2);
  EXPECT_EQ(dropped.dropped_rows(), 1);
  EXPECT_EQ(dropped.rows_size(), 1);
  EXPECT_EQ(dropped.total_rows(), 2);
  const auto split = preview("text", v1::OVERLONG_POLICY_UNSPECIFIED, 4);
  EXPECT_EQ(split.split_rows(), 1);
  ASSERT_GT(split.rows_size(), 1);
  EXPECT_EQ(split.rows(1).part(), 1);
  EXPECT_EQ(split.rows(1).row(), 1);
}

// Jobs are planned; their trainer fails at once.
class PlannedRowsTest : public DatasetServiceTest {
 protected:
  AppOptions Options() override {
    AppOptions options = DatasetServiceTest::Options();
    options.trainer_path = "/bin/false";
    return options;
  }
};

// T7 (docs/faults.md)
class TokenFilesTest : public PlannedRowsTest {
 protected:
  void SetUp() override {
    PlannedRowsTest::SetUp();
    Import("tiny");
    AppTest::Upload("texts", kTinyTexts);
  }
  AppOptions Options() override {
    AppOptions options = PlannedRowsTest::Options();
    options.token_cache_bytes = cache_bytes_;
    return options;
  }
  void Plan(int max_seq_len) {
    v1::PlanJobRequest plan;
    *plan.mutable_spec() = TinyJob().spec();
    plan.mutable_spec()->mutable_data()->set_max_seq_len(max_seq_len);
    v1::PlanJobResponse planned;
    const grpc::Status status = Call(jobs_, &v1::FineTuneService::Stub::PlanJob, plan, &planned);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  std::vector<std::string> Files() {
    return base::RealFileSystem().List(directory_ + "/state/tokens/texts").value_or(std::vector<std::string>());
  }
  std::int64_t cache_bytes_ = 1 << 20;
};

TEST_F(TokenFilesTest, PlansShareAFileThatIsDeletedWithItsDataset) {
  Plan(8);
  ASSERT_EQ(Files().size(), 1u);
  const std::string path = directory_ + "/state/tokens/texts/" + Files()[0];
  struct stat before, after;
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  Plan(8);
  ASSERT_EQ(::stat(path.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino) << "the file was not made again";
  Plan(9);
  EXPECT_EQ(Files().size(), 2u);
  v1::DeleteDatasetRequest request;
  request.set_name("texts");
  v1::DeleteDatasetResponse response;
  ASSERT_TRUE(Call(datasets_, &v1::DatasetService::Stub::DeleteDataset, request, &response).ok());
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/state/tokens/texts"));
}

class NoTokenFilesTest : public TokenFilesTest {
 protected:
  NoTokenFilesTest() { cache_bytes_ = 0; }
};

TEST_F(NoTokenFilesTest, OnlyFilesOfOpenJobsAreKept) {
  Plan(8);
  EXPECT_TRUE(Files().empty());
  v1::CreateJobRequest request = TinyJob();
  request.mutable_spec()->mutable_data()->set_max_seq_len(8);
  v1::Job job;
  const grpc::Status created = Call(jobs_, &v1::FineTuneService::Stub::CreateJob, request, &job);
  ASSERT_TRUE(created.ok()) << created.error_message();
  Plan(8);
  EXPECT_EQ(Files().size(), 1u);
  const std::vector<std::string> kept = Files();
  Plan(9);
  EXPECT_EQ(Files(), kept);
  v1::CancelJobRequest cancel;
  cancel.set_name(job.name());
  ASSERT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::CancelJob, cancel, &job).ok());
  EXPECT_TRUE(testing_support::Soon([&] { return Files().empty(); }, std::chrono::seconds(60)))
      << "the end of the job removes the files without another plan";
}

// The preview names the line as an upload does, with the reason for which a job on the same data is refused.
TEST_F(PlannedRowsTest, PreviewNamesTheRowThatTrainingWouldRefuse) {
  Import("tiny");
  const std::string short_row = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
  AppTest::Upload("pairs", short_row + "\n{\"prompt\": \"a b c d\", \"completion\": \" e f g h i j k l\"}\n");
  v1::PreviewDatasetRequest request;
  request.set_dataset("pairs");
  request.set_model("tiny");
  request.mutable_data()->set_max_seq_len(8);
  request.mutable_data()->set_overlong(v1::OVERLONG_POLICY_ERROR);
  const auto preview = [&] {
    v1::PreviewDatasetResponse response;
    return Call(datasets_, &v1::DatasetService::Stub::PreviewDataset, request, &response);
  };
  const grpc::Status longer = preview();
  EXPECT_EQ(longer.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(longer), "DATASET_FORMAT");
  EXPECT_EQ(FieldOf(longer), "line 3");
  EXPECT_THAT(longer.error_message(), HasSubstr("max_seq_len is 8"));
  v1::PlanJobRequest plan;
  *plan.mutable_spec() = TinyJob().spec();
  plan.mutable_spec()->set_train_dataset("pairs");
  *plan.mutable_spec()->mutable_data() = request.data();
  v1::PlanJobResponse planned;
  const grpc::Status refused = Call(jobs_, &v1::FineTuneService::Stub::PlanJob, plan, &planned);
  EXPECT_EQ(ReasonOf(refused), "DATASET_FORMAT");
  EXPECT_EQ(refused.error_message(), "train_dataset: " + longer.error_message());
  request.mutable_data()->clear_overlong();
  request.mutable_data()->set_format(v1::DATASET_FORMAT_TEXT);
  const grpc::Status other = preview();
  EXPECT_EQ(other.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(other), "DATASET_FORMAT");
  EXPECT_EQ(FieldOf(other), "line 1");
  EXPECT_THAT(other.error_message(), HasSubstr("no \"text\""));
}

TEST_F(DatasetServiceTest, ChunkAboveOneMebibyteIsRefused) {
  v1::Dataset dataset;
  EXPECT_EQ(FieldOf(Upload("big", std::string((1 << 20) + 1, 'x'), v1::DATASET_FORMAT_TEXT, &dataset)), "chunk");
}

class StreamMessagesTest : public DatasetServiceTest {
 protected:
  AppOptions Options() override {
    AppOptions options = DatasetServiceTest::Options();
    options.max_stream_messages = 3;
    return options;
  }
  // Sends a header, then `chunks` chunks of `bytes` bytes each, then the end.
  grpc::Status Chunks(const std::string& name, int chunks, std::size_t bytes) {
    grpc::ClientContext context;
    v1::Dataset dataset;
    auto writer = datasets_->UploadDataset(&context, &dataset);
    v1::UploadDatasetRequest message;
    message.mutable_header()->set_name(name);
    message.mutable_header()->set_format(v1::DATASET_FORMAT_TEXT);
    const std::string begin = "{\"text\": \"", end = "\"}\n";
    const std::string chunk = begin + std::string(bytes - begin.size() - end.size(), 'x') + end;
    std::string all;
    bool open = writer->Write(message);
    for (int i = 0; i < chunks && open; ++i) {
      message.set_chunk(chunk);
      all += chunk;
      open = writer->Write(message);
    }
    message.mutable_finish()->set_sha256(base::Sha256Hex(all));
    writer->Write(message);
    writer->WritesDone();
    return writer->Finish();
  }
};

// A limit on the number of all messages would end every large upload. Large messages are limited by their bytes
// instead.
TEST_F(StreamMessagesTest, OnlySmallMessagesAreCounted) {
  EXPECT_TRUE(Chunks("one", 1, 100).ok());
  EXPECT_EQ(ReasonOf(Chunks("many", 2, 100)), "MESSAGE_TOO_LARGE");
  const grpc::Status large = Chunks("large", 5, 1 << 19);
  EXPECT_TRUE(large.ok()) << large.error_message();
}

class LineLimitTest : public DatasetServiceTest {
 protected:
  AppOptions Options() override {
    AppOptions options = DatasetServiceTest::Options();
    options.max_dataset_line_bytes = 40;
    return options;
  }
};

TEST_F(LineLimitTest, LinesLongerThanTheFlagAreRefused) {
  v1::Dataset dataset;
  const std::string line = "{\"text\": \"" + std::string(28, 'x') + "\"}";
  ASSERT_EQ(line.size(), 40u);
  EXPECT_TRUE(Upload("whole", line + "\n" + line, v1::DATASET_FORMAT_TEXT, &dataset).ok());
  const auto refused = Upload("long", line + "\n " + line + "\n", v1::DATASET_FORMAT_TEXT, &dataset);
  EXPECT_EQ(ReasonOf(refused), "DATASET_FORMAT");
  EXPECT_THAT(refused.error_message(), HasSubstr("line 2: longer than 40 bytes"));
}

class OldStreamTest : public DatasetServiceTest {
 protected:
  AppOptions Options() override {
    AppOptions options = DatasetServiceTest::Options();
    options.max_stream_age_s = 0.2;
    return options;
  }
};

// A client that stops after the header, and one that sends nothing at all.
TEST_F(OldStreamTest, SilentUploadEndsAtTheAgeLimit) {
  for (const bool header : {true, false}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    v1::Dataset dataset;
    auto writer = datasets_->UploadDataset(&context, &dataset);
    v1::UploadDatasetRequest message;
    message.mutable_header()->set_name("silent");
    if (header) writer->Write(message);  // may fail: the age limit may already be reached
    const auto began = std::chrono::steady_clock::now();
    const grpc::Status status = writer->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
    EXPECT_EQ(status.error_message(), "the stream is older than 200ms");
    EXPECT_EQ(ReasonOf(status), "DEADLINE_EXCEEDED");
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30))
        << "the server ended it, not the client's deadline";
    EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/state/uploads"));
  }
  v1::UploadModelResponse uploaded;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  auto writer = models_->UploadModel(&context, &uploaded);
  EXPECT_EQ(writer->Finish().error_message(), "the stream is older than 200ms") << "models too";
}

// Sending does not extend the age limit.
TEST_F(OldStreamTest, EndlessUploadEndsAtTheAgeLimit) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  v1::Dataset dataset;
  auto writer = datasets_->UploadDataset(&context, &dataset);
  v1::UploadDatasetRequest message;
  message.mutable_header()->set_name("endless");
  writer->Write(message);
  message.set_chunk("{\"text\": \"a\"}\n");
  while (writer->Write(message)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(writer->Finish().error_message(), "the stream is older than 200ms");
}

// No worker begins a call within the default deadline of 1 ns, so a call without a deadline fails because it waited too
// long. A call with its own deadline may wait until that deadline.
class ImpatientServerTest : public DatasetServiceTest {
 protected:
  AppOptions Options() override {
    AppOptions options = DatasetServiceTest::Options();
    options.default_deadline_s = 1e-9;
    return options;
  }
};

TEST_F(ImpatientServerTest, FlagLimitsTheWaitOfACallWithoutADeadline) {
  v1::Dataset dataset;
  ASSERT_TRUE(Upload("d", "{\"text\": \"a\"}\n", v1::DATASET_FORMAT_TEXT, &dataset).ok());
  v1::DeleteDatasetRequest request;
  request.set_name("d");
  v1::DeleteDatasetResponse response;
  grpc::ClientContext context;
  const auto refused = datasets_->DeleteDataset(&context, request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << refused.error_message();
  EXPECT_EQ(ReasonOf(refused), "DEADLINE_EXCEEDED");
  v1::GetDatasetRequest get;
  get.set_name("d");
  EXPECT_TRUE(Call(datasets_, &v1::DatasetService::Stub::GetDataset, get, &dataset).ok()) << "nothing was deleted";
  const auto taken = Call(datasets_, &v1::DatasetService::Stub::DeleteDataset, request, &response);  // with a deadline
  EXPECT_TRUE(taken.ok()) << taken.error_message();
}

// A path of the server is accepted only below --import_root.
class ServerPathTest : public DatasetServiceTest {
 protected:
  AppOptions Options() override {
    AppOptions options = DatasetServiceTest::Options();
    std::filesystem::create_directory(directory_ + "/root");
    std::ofstream(directory_ + "/root/rows.jsonl") << kRows;
    std::ofstream(directory_ + "/outside.jsonl") << kRows;
    std::filesystem::create_symlink("../outside.jsonl", directory_ + "/root/link.jsonl");
    options.import_root = directory_ + "/root";
    return options;
  }
  grpc::Status SendPath(const std::string& name, const std::string& path, v1::Dataset* dataset,
                        const std::string& sha256 = "", const std::string& chunk = "") {
    grpc::ClientContext context;
    auto writer = datasets_->UploadDataset(&context, dataset);
    v1::UploadDatasetRequest message;
    message.mutable_header()->set_name(name);
    message.mutable_header()->set_server_path(path);
    writer->Write(message);
    if (!chunk.empty()) {
      message.set_chunk(chunk);
      writer->Write(message);
    }
    message.mutable_finish()->set_sha256(sha256);
    writer->Write(message);
    writer->WritesDone();
    return writer->Finish();
  }
  static constexpr char kRows[] = "{\"text\": \"a b\"}\n{\"text\": \"c\"}\n";
};

TEST_F(ServerPathTest, AFileBelowTheImportRootIsCopied) {
  v1::Dataset dataset;
  grpc::Status status = SendPath("mine", "rows.jsonl", &dataset);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(dataset.rows(), 2);
  EXPECT_EQ(dataset.sha256(), base::Sha256Hex(kRows));
  // Again with the right digest, then with a wrong one.
  EXPECT_TRUE(SendPath("mine", "rows.jsonl", &dataset, dataset.sha256()).ok());
  EXPECT_EQ(FieldOf(SendPath("other", "rows.jsonl", &dataset, std::string(64, '0'))), "finish.sha256");
  EXPECT_EQ(FieldOf(SendPath("other", "rows.jsonl", &dataset, "", "more")), "chunk");
}

TEST_F(ServerPathTest, PathsOutsideTheImportRootAreRefusedAndLeaveNothing) {
  v1::Dataset dataset;
  for (const std::string path : {"../outside.jsonl", "link.jsonl", "/etc/passwd", ".", "none.jsonl", ""}) {
    const grpc::Status status = SendPath("mine", path, &dataset);
    EXPECT_FALSE(status.ok()) << path;
    EXPECT_NE(status.error_code(), grpc::StatusCode::INTERNAL) << path;
  }
  v1::GetDatasetRequest get;
  get.set_name("mine");
  grpc::ClientContext context;
  EXPECT_EQ(datasets_->GetDataset(&context, get, &dataset).error_code(), grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace nibble
