// Client::WatchJobLogs and `nibble jobs logs`: lost connections, bytes and text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "tests/client/fake_server.h"

namespace nibble::client {
namespace {

using ::testing::HasSubstr;
using WriteChunk = std::function<bool(const v1::JobLogChunk&)>;

v1::JobLogChunk Chunk(int attempt, std::int64_t offset, const std::string& data = "") {
  v1::JobLogChunk chunk;
  chunk.set_attempt(attempt);
  chunk.set_offset(offset);
  chunk.set_data(data);
  return chunk;
}

grpc::Status LogLost() { return grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection reset"); }

class WatchLogsTest : public ::testing::Test {
 protected:
  absl::Status Watch(const v1::WatchJobLogsRequest& request) {
    Client client(server_.Channel(), FastOptions());
    return client.WatchJobLogs(request, [&](const v1::JobLogChunk& chunk) {
      got_ += chunk.data();
      return absl::OkStatus();
    });
  }

  FakeServer server_;
  std::string got_;
};

TEST_F(WatchLogsTest, ContinuesAtTheNextByteOfTheAttempt) {
  server_.watch_job_logs.answer = [this](const v1::WatchJobLogsRequest& request, const WriteChunk& write) {
    switch (server_.watch_job_logs.asked.size()) {
      case 1:
        write(Chunk(2, 100));
        write(Chunk(2, 100, "abc"));
        return LogLost();
      case 2: return grpc::Status(grpc::StatusCode::CANCELLED, "CANCELLED");  // cut off by a server that drains
      case 3:
        write(Chunk(2, request.offset(), "de"));
        write(Chunk(3, 0));
        return LogLost();
      default:
        write(Chunk(3, 0));
        write(Chunk(3, 0, "f"));
        return grpc::Status::OK;
    }
  };
  v1::WatchJobLogsRequest request;
  request.set_name("job-1");
  request.set_follow(true);
  request.set_tail_lines(1);
  ASSERT_TRUE(Watch(request).ok());
  EXPECT_EQ(got_, "abcdef");
  const auto& asked = server_.watch_job_logs.asked;
  ASSERT_EQ(asked.size(), 4u);
  EXPECT_FALSE(asked[0].has_attempt());
  EXPECT_EQ(asked[0].tail_lines(), 1);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(asked[i].attempt(), i == 3 ? 3 : 2);
    EXPECT_EQ(asked[i].offset(), i == 3 ? 0 : 103);
    EXPECT_FALSE(asked[i].has_tail_lines());
    EXPECT_TRUE(asked[i].follow());
  }
}

TEST_F(WatchLogsTest, MissingBytesAreAnError) {
  server_.watch_job_logs.Answers({Chunk(1, 0), Chunk(1, 0, "abc"), Chunk(1, 4, "e")});
  const absl::Status status = Watch({});
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(got_, "abc");
}

TEST_F(WatchLogsTest, GivesUpOnAServerThatIsNotReached) {
  server_.watch_job_logs.answer = [](const auto&, const WriteChunk&) { return LogLost(); };
  EXPECT_TRUE(absl::IsUnavailable(Watch({})));
  EXPECT_EQ(server_.watch_job_logs.asked.size(), static_cast<std::size_t>(FastOptions().attempts));
}

TEST_F(WatchLogsTest, CommandWritesTheBytesAsTheyAre) {
  const std::string bytes("a\0\x1b[31m\xFF\r\n", 10);
  server_.watch_job_logs.Answers({Chunk(3, 7), Chunk(3, 7, bytes)});
  const Result result = RunNibble(server_, {"jobs", "logs", "job-1", "--attempt", "3", "--tail", "5"});
  EXPECT_EQ(result.exit, 0) << result.err;
  EXPECT_EQ(result.out, bytes);
  EXPECT_EQ(result.err, "");
  const v1::WatchJobLogsRequest& asked = server_.watch_job_logs.asked.at(0);
  EXPECT_EQ(asked.name(), "job-1");
  EXPECT_EQ(asked.attempt(), 3);
  EXPECT_EQ(asked.tail_lines(), 5);
  EXPECT_FALSE(asked.follow());
}

TEST_F(WatchLogsTest, TerminalGetsNoControlCharacters) {
  // U+009B, which means ESC [, is divided between two chunks.
  server_.watch_job_logs.Answers(
      {Chunk(1, 0), Chunk(1, 0, "a\x1b[2J\tb\xC2"), Chunk(1, 8, "\x9B\n"), Chunk(2, 0), Chunk(2, 0, "c\n")});
  const Result result = RunNibbleInTerminal(server_, {"jobs", "logs", "job-1", "-f"});
  EXPECT_EQ(result.exit, 0);
  EXPECT_EQ(result.out, "a\xEF\xBF\xBD[2J\tb\xEF\xBF\xBD\nc\n");
  EXPECT_EQ(result.err, "attempt 2\n");
  EXPECT_TRUE(server_.watch_job_logs.asked.at(0).follow());
}

TEST_F(WatchLogsTest, CommandSaysThatALogIsEmpty) {
  server_.watch_job_logs.Answers({Chunk(1, 0)});
  Result result = RunNibble(server_, {"jobs", "logs", "job-1"});
  EXPECT_EQ(result.exit, 0);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "the trainer wrote nothing to its log, or no attempt has begun\n");
  result = RunNibble(server_, {"--json", "jobs", "logs", "job-1"});
  EXPECT_EQ(result.out + result.err, "") << "nothing for programs";
  server_.watch_job_logs.Answers({Chunk(1, 9)});
  EXPECT_EQ(RunNibble(server_, {"jobs", "logs", "job-1", "--tail", "0"}).err, "");
  server_.watch_job_logs.Answers({Chunk(1, 0), Chunk(1, 0, "a")});
  EXPECT_EQ(RunNibble(server_, {"jobs", "logs", "job-1"}).err, "");
}

TEST_F(WatchLogsTest, CommandShowsTheServersError) {
  server_.watch_job_logs.answer = [](const auto&, const WriteChunk&) {
    return Error(grpc::StatusCode::NOT_FOUND, "attempt 9 of job job-1 does not exist", "ATTEMPT");
  };
  const Result result = RunNibble(server_, {"jobs", "logs", "job-1", "--attempt", "9"});
  EXPECT_EQ(result.exit, 3);
  EXPECT_THAT(result.err, HasSubstr("NOT_FOUND (ATTEMPT): attempt 9"));
  EXPECT_EQ(RunNibble(server_, {"jobs", "logs", "job-1", "--attempt", "0"}).exit, 2);
  EXPECT_EQ(RunNibble(server_, {"jobs", "logs", "job-1", "--tail", "-1"}).exit, 2);
}

TEST_F(WatchLogsTest, CommandThatIsCutOffSaysHowToContinue) {
  server_.watch_job_logs.answer = [](const auto&, const WriteChunk& write) {
    write(Chunk(1, 0, "abc\n"));
    return Error(grpc::StatusCode::INTERNAL, "broken", "");
  };
  EXPECT_THAT(RunNibble(server_, {"jobs", "logs", "-f", "job-1"}).err, HasSubstr("nibble jobs logs -f job-1"));
  EXPECT_THAT(RunNibble(server_, {"jobs", "logs", "job-1"}).err, ::testing::Not(HasSubstr("logs -f")));
}

}  // namespace
}  // namespace nibble::client
