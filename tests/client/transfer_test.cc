// Uploads and downloads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "server/base/files.h"
#include "server/base/sha256.h"
#include "tests/client/fake_server.h"

namespace nibble::client {
namespace {

using ::testing::HasSubstr;
using DownloadWrite = std::function<bool(const v1::DownloadArtifactResponse&)>;

// Bytes whose period is not a power of two, so that bytes sent from a wrong offset differ.
std::string Bytes(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>((i * 131 + i / 251) & 0xFF);
  return bytes;
}

v1::UploadModelHeader ModelHeader() { return Proto<v1::UploadModelHeader>("name: 'smol'"); }
v1::UploadDatasetHeader Header() { return Proto<v1::UploadDatasetHeader>("name: 'd'"); }

TEST(UploadDatasetTest, SendsChunksOfAtMostAMebibyteAndTheirSha256) {
  for (const std::size_t size : {1ul, (1ul << 20) - 1, 1ul << 20, (1ul << 20) + 1, (3ul << 20) + 17}) {
    FakeServer server;
    Client client(server.Channel(), FastOptions());
    const std::string content = Bytes(size);
    std::int64_t last = 0;
    const auto dataset = client.UploadDataset(WriteFile("d.jsonl", content), Header(),
                                              [&](const std::string&, std::int64_t done, std::int64_t total) {
                                                EXPECT_GT(done, last);
                                                EXPECT_EQ(total, static_cast<std::int64_t>(size));
                                                last = done;
                                              });
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    ASSERT_EQ(server.uploads.size(), 1u);
    EXPECT_TRUE(server.uploads[0].bytes == content) << size;
    EXPECT_EQ(server.uploads[0].sha256, base::Sha256Hex(content));
    EXPECT_EQ(server.uploads[0].announced_bytes, static_cast<std::int64_t>(size));
    EXPECT_LE(server.uploads[0].largest_chunk, 1u << 20);
    EXPECT_EQ(last, static_cast<std::int64_t>(size));
  }
}

TEST(UploadDatasetTest, EmptyFileIsSentToTheServer) {
  FakeServer server;
  Client client(server.Channel(), FastOptions());
  ASSERT_TRUE(client.UploadDataset(WriteFile("d.jsonl", ""), Header(), nullptr).ok());
  EXPECT_EQ(server.uploads[0].sha256, base::Sha256Hex(""));
}

TEST(UploadDatasetTest, RetriesWhenTheConnectionIsLost) {
  FakeServer server;
  server.on_upload = [&](const Upload&) {
    return server.uploads.size() < 3 ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost") : grpc::Status::OK;
  };
  Client client(server.Channel(), FastOptions());
  EXPECT_TRUE(client.UploadDataset(WriteFile("d.jsonl", "{}\n"), Header(), nullptr).ok());
  ASSERT_EQ(server.uploads.size(), 3u);
  EXPECT_EQ(server.uploads[2].bytes, "{}\n");
}

// A restart of the server loses the uploads that are in memory.
TEST(UploadDatasetTest, BeginsAgainIfTheServerHasLostTheUpload) {
  FakeServer server;
  server.lose_after = {4};
  server.get_upload.answer = [&](const v1::GetUploadRequest&, v1::Upload*) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such upload");
  };
  Client client(server.Channel(), FastOptions());
  EXPECT_TRUE(client.UploadDataset(WriteFile("d.jsonl", "{\"a\":1}\n"), Header(), nullptr).ok());
  ASSERT_EQ(server.uploads.size(), 1u);
  EXPECT_EQ(server.uploads[0].offset, 0);
  EXPECT_EQ(server.uploads[0].bytes, "{\"a\":1}\n");
}

// While the server does not answer, the client does not know which bytes have arrived: a stream from the first byte on
// would replace them.
TEST(UploadDatasetTest, SendsNothingUntilTheServerSaysWhatHasArrived) {
  FakeServer server;
  server.lose_after = {4};
  int asked = 0;
  server.get_upload.answer = [&](const v1::GetUploadRequest&, v1::Upload* upload) {
    if (++asked <= FastOptions().attempts) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting");
    upload->set_committed_bytes(4);
    upload->set_num_files(1);
    return grpc::Status::OK;
  };
  Client client(server.Channel(), FastOptions());
  EXPECT_TRUE(client.UploadDataset(WriteFile("d.jsonl", "{\"a\":1}\n"), Header(), nullptr).ok());
  EXPECT_EQ(asked, FastOptions().attempts + 1);
  ASSERT_EQ(server.lost.size(), 1u);
  ASSERT_EQ(server.uploads.size(), 1u);
  EXPECT_EQ(server.uploads[0].offset, 4);
  EXPECT_EQ(server.uploads[0].bytes, ":1}\n") << "the bytes after those that have arrived";
}

// The server says how many bytes have arrived; the client may have to resume in the middle of a chunk. docs/faults.md,
// C10.
TEST(UploadDatasetTest, C10ResumesAtTheOffsetOfTheServer) {
  const std::string content = Bytes((6 << 20) + 3);
  FakeServer server;
  // Each stream makes progress, so more streams may be lost than there are attempts.
  server.lose_after = {1 << 20, 1, 1, 1, 1, 1};
  std::int64_t arrived = 0;
  server.get_upload.answer = [&](const v1::GetUploadRequest&, v1::Upload* upload) {
    arrived += (1 << 20) - 7;
    upload->set_committed_bytes(arrived);
    upload->set_num_files(1);
    return grpc::Status::OK;
  };
  Client client(server.Channel(), FastOptions());
  const auto dataset = client.UploadDataset(WriteFile("d.jsonl", content), Header(), nullptr);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  ASSERT_EQ(server.uploads.size(), 1u);
  const Upload& last = server.uploads[0];
  EXPECT_EQ(last.offset, 6 * ((1 << 20) - 7));
  EXPECT_TRUE(last.bytes == content.substr(static_cast<std::size_t>(last.offset)));
  EXPECT_EQ(last.sha256, base::Sha256Hex(content)) << "SHA-256 of the whole file";
  ASSERT_EQ(server.lost.size(), 6u);
  for (const Upload& lost : server.lost) {
    EXPECT_EQ(lost.id, last.id);
    EXPECT_TRUE(content.substr(static_cast<std::size_t>(lost.offset)).starts_with(lost.bytes)) << lost.offset;
  }
  EXPECT_FALSE(last.id.empty());
}

TEST(UploadDatasetTest, C10GivesUpWithoutProgress) {
  FakeServer server;
  server.lose_after = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  v1::Upload nothing;
  server.get_upload.Answers(nothing);
  Client client(server.Channel(), FastOptions());
  EXPECT_TRUE(absl::IsUnavailable(client.UploadDataset(WriteFile("d.jsonl", "{}\n"), Header(), nullptr).status()));
  EXPECT_EQ(server.lost.size(), static_cast<std::size_t>(FastOptions().attempts));
}

// The header is the one that `nibble datasets upload --resume` sends for an upload that another process began.
TEST(UploadDatasetTest, C10ResumesAnUploadOfAnotherProcess) {
  FakeServer server;
  v1::Upload there;
  there.set_committed_bytes(4);
  server.get_upload.Answers(there);
  Client client(server.Channel(), FastOptions());
  v1::UploadDatasetHeader header = Header();
  header.set_upload_id("mine");
  header.set_resume_offset(0);
  ASSERT_TRUE(client.UploadDataset(WriteFile("d.jsonl", "0123456789"), header, nullptr).ok());
  EXPECT_EQ(server.uploads.at(0).id, "mine");
  EXPECT_EQ(server.uploads[0].offset, 4);
  EXPECT_EQ(server.uploads[0].bytes, "456789");
  EXPECT_EQ(server.uploads[0].sha256, base::Sha256Hex("0123456789"));
  server.get_upload.Fails(Error(grpc::StatusCode::NOT_FOUND, "no such upload", "UPLOAD"));
  EXPECT_TRUE(absl::IsNotFound(client.UploadDataset(WriteFile("d.jsonl", "x"), header, nullptr).status()));
}

TEST(UploadDatasetTest, OtherErrorsAreNotRetried) {
  FakeServer server;
  server.on_upload = [](const Upload&) {
    return Error(grpc::StatusCode::INVALID_ARGUMENT, "line 3: not JSON", "DATASET_FORMAT");
  };
  Client client(server.Channel(), FastOptions());
  const auto dataset = client.UploadDataset(WriteFile("d.jsonl", "{}\n"), Header(), nullptr);
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(server.uploads.size(), 1u);
}

TEST(UploadDatasetTest, RejectsMissingFileAndDirectory) {
  FakeServer server;
  Client client(server.Channel(), FastOptions());
  EXPECT_EQ(client.UploadDataset("/nowhere/at/all", Header(), nullptr).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client.UploadDataset(TemporaryFolder(), Header(), nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(server.uploads.empty());
}

TEST(UploadModelTest, SendsEachFileUnderItsNameWithOneSha256OverAll) {
  FakeServer server;
  Client client(server.Channel(), FastOptions());
  const std::string config = "{}", weights = Bytes((1 << 20) + 5);
  const std::vector<FileToSend> files = {
      {WriteFile("a", config), "config.json", static_cast<std::int64_t>(config.size())},
      {WriteFile("b", weights), "model.safetensors", static_cast<std::int64_t>(weights.size())}};
  const auto response = client.UploadModel(ModelHeader(), files, nullptr);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->upload_id(), "upload-1");
  const Upload& upload = server.uploads.at(0);
  ASSERT_EQ(upload.files.size(), 2u);
  EXPECT_EQ(upload.files[0].path(), "config.json");
  EXPECT_EQ(upload.files[1].size_bytes(), (1 << 20) + 5);
  EXPECT_TRUE(upload.bytes == config + weights);
  EXPECT_EQ(upload.sha256, base::Sha256Hex(config + weights));
  EXPECT_EQ(upload.announced_bytes, static_cast<std::int64_t>(config.size() + weights.size()));
}

TEST(UploadModelTest, C10ResumesWithinAFile) {
  FakeServer server;
  const std::string config = "{}", weights = Bytes((2 << 20) + 5), last = "end";
  const auto file = [](const std::string& name, const std::string& bytes) {
    return FileToSend{WriteFile("f", bytes), name, static_cast<std::int64_t>(bytes.size())};
  };
  server.lose_after = {2 << 20};
  v1::Upload arrived;
  arrived.set_committed_bytes(2 + 100);
  arrived.set_num_files(2);
  server.get_upload.Answers(arrived);
  Client client(server.Channel(), FastOptions());
  const auto response =
      client.UploadModel(ModelHeader(), {file("config.json", config), file("w", weights), file("z", last)}, nullptr);
  ASSERT_TRUE(response.ok()) << response.status();
  const Upload& upload = server.uploads.at(0);
  ASSERT_EQ(upload.files.size(), 1u) << "files that were already opened are not opened again";
  EXPECT_EQ(upload.files[0].path(), "z");
  EXPECT_TRUE(upload.bytes == weights.substr(100) + last);
  EXPECT_EQ(upload.sha256, base::Sha256Hex(config + weights + last));
  EXPECT_EQ(upload.offset, 102);
}

// The server says that a file is open, but without any byte there is nothing to resume: the upload begins again.
TEST(UploadModelTest, C10UploadThatWasLostBeforeItsFirstByteOpensItsFilesAgain) {
  FakeServer server;
  server.lose_after = {1};
  v1::Upload arrived;
  arrived.set_num_files(1);
  server.get_upload.Answers(arrived);
  Client client(server.Channel(), FastOptions());
  const auto response = client.UploadModel(ModelHeader(), {{WriteFile("a", "12345"), "a.gguf", 5}}, nullptr);
  ASSERT_TRUE(response.ok()) << response.status();
  const Upload& upload = server.uploads.at(0);
  EXPECT_EQ(upload.offset, 0);
  ASSERT_EQ(upload.files.size(), 1u);
  EXPECT_EQ(upload.bytes, "12345");
}

TEST(UploadModelTest, RejectsFileThatGrewOrShrank) {
  FakeServer server;
  Client client(server.Channel(), FastOptions());
  for (const std::int64_t listed : {4, 6}) {
    const auto response = client.UploadModel(ModelHeader(), {{WriteFile("a", "12345"), "a.gguf", listed}}, nullptr);
    EXPECT_EQ(response.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(response.status().message()), HasSubstr("changed"));
  }
  EXPECT_TRUE(server.uploads.empty());
}

TEST(DownloadDatasetTest, WritesTheWholeFileOrNothing) {
  FakeServer server;
  Client client(server.Channel(), FastOptions());
  bool whole = true;
  server.download_dataset.answer = [&](const v1::DownloadDatasetRequest& request,
                                       const std::function<bool(const v1::DownloadDatasetResponse&)>& write) {
    EXPECT_EQ(request.name(), "d");
    write(Proto<v1::DownloadDatasetResponse>("chunk: 'hello '"));
    if (!whole) return grpc::Status(grpc::StatusCode::DATA_LOSS, "damaged");
    write(Proto<v1::DownloadDatasetResponse>("chunk: 'world'"));
    return grpc::Status::OK;
  };
  const std::string folder = TemporaryFolder();
  const std::string path = folder + "/rows.jsonl";
  const auto bytes = client.DownloadDataset("d", path, nullptr);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, 11);
  EXPECT_EQ(*base::RealFileSystem().Read(path, 100), "hello world");
  whole = false;
  EXPECT_TRUE(absl::IsDataLoss(client.DownloadDataset("d", path, nullptr).status()));
  EXPECT_EQ(*base::RealFileSystem().Read(path, 100), "hello world") << "a failed download must leave the file alone";
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
}

class DownloadTest : public ::testing::Test {
 protected:
  // Sends the messages given as text protos.
  absl::StatusOr<std::vector<v1::FileEntry>> Download(const std::vector<std::string>& messages) {
    server_.download_artifact.answer = [messages](const v1::DownloadArtifactRequest&, const DownloadWrite& write) {
      for (const auto& text : messages) write(Proto<v1::DownloadArtifactResponse>(text));
      return grpc::Status::OK;
    };
    Client client(server_.Channel(), FastOptions());
    folder_ = TemporaryFolder() + "/out";
    return client.DownloadArtifact("artifact-1", folder_, nullptr);
  }
  bool Exists(const std::string& name) { return std::filesystem::exists(folder_ + "/" + name); }

  FakeServer server_;
  std::string folder_;
  const std::string finish_ = "finish { sha256: '" + base::Sha256Hex("hello world") + "' }";
};

TEST_F(DownloadTest, WritesAndChecksTheFiles) {
  const auto files =
      Download({"file { path: 'a.json' size_bytes: 5 sha256: '" + base::Sha256Hex("hello") + "' }", "chunk: 'hel'",
                "chunk: 'lo'", "file { path: 'sub/b' size_bytes: 6 }", "chunk: ' world'", finish_});
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->size(), 2u);
  EXPECT_EQ((*files)[1].sha256(), base::Sha256Hex(" world"));
  EXPECT_EQ(*base::RealFileSystem().Read(folder_ + "/a.json", 100), "hello");
  EXPECT_EQ(*base::RealFileSystem().Read(folder_ + "/sub/b", 100), " world");
}

TEST_F(DownloadTest, RejectsPathsOutsideTheFolder) {
  for (const std::string path : {"../x", "/etc/x", "a/../../x", "a//b", "", ".", "a/.", "a\\\\b", "a\\nb"}) {
    const auto files = Download({"file { path: '" + path + "' size_bytes: 11 }", "chunk: 'hello world'", finish_});
    EXPECT_EQ(files.status().code(), absl::StatusCode::kDataLoss) << path;
  }
}

TEST_F(DownloadTest, WrongSizeOrDigestLeavesNoFile) {
  const std::string chunk = "chunk: 'hello world'";
  const std::vector<std::vector<std::string>> bad = {
      {"file { path: 'a' size_bytes: 10 }", chunk, finish_},               // longer
      {"file { path: 'a' size_bytes: 12 }", chunk, finish_},               // shorter
      {"file { path: 'a' size_bytes: 11 sha256: 'ab' }", chunk, finish_},  // the file's digest
      {"file { path: 'a' size_bytes: 11 }", chunk},                        // no end
      {chunk, finish_},                                                    // no file
      {"file { path: 'a' size_bytes: -1 }", finish_}};
  for (const auto& messages : bad) {
    const auto files = Download(messages);
    EXPECT_EQ(files.status().code(), absl::StatusCode::kDataLoss) << messages[0];
    EXPECT_FALSE(Exists("a"));
    EXPECT_FALSE(Exists("a.partial"));
  }
  EXPECT_EQ(Download({"file { path: 'a' size_bytes: 11 }", chunk, "finish { sha256: 'ab' }"}).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(Download({"file { path: 'a' size_bytes: 0 }", "file { path: 'a' size_bytes: 11 }", chunk, finish_})
                .status()
                .code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace nibble::client
