// Uploads that are interrupted, resumed, cancelled and bounded, over the wire (docs/faults.md, C10).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "nibble/v1/upload_service.grpc.pb.h"
#include "server/base/sha256.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/support/soon.h"

namespace nibble {
namespace {

using testing_support::AppTest;
using testing_support::FieldOf;
using testing_support::ReasonOf;

std::string Rows() { return "{\"text\": \"a b c\"}\n{\"text\": \"d e f\"}\n"; }

class UploadServiceTest : public AppTest {
 protected:
  AppOptions Options() override {
    AppOptions options = AppTest::Options();
    options.max_dataset_bytes = 1000;
    options.max_model_bytes = 4000;
    options.max_upload_bytes_per_principal = 5000;
    options.upload_kept_s = kept_s_;
    return options;
  }
  void SetUp() override {
    AppTest::SetUp();
    uploads_ = v1::UploadService::NewStub(channel_);
  }
  // Sends these bytes in a stream that is cancelled without a finish.
  void BreakOff(const std::string& name, const std::string& id, const std::string& bytes, std::int64_t offset = 0) {
    grpc::ClientContext context;
    v1::Dataset dataset;
    auto writer = datasets_->UploadDataset(&context, &dataset);
    v1::UploadDatasetRequest message;
    *message.mutable_header() = Header(name, id, offset);
    writer->Write(message);
    message.set_chunk(bytes);
    writer->Write(message);
    AwaitBytes(id, offset + static_cast<std::int64_t>(bytes.size()));
    context.TryCancel();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
    Await([&] { return Get(id).state() == v1::UPLOAD_STATE_INTERRUPTED; });
  }
  static v1::UploadDatasetHeader Header(const std::string& name, const std::string& id, std::int64_t offset = 0) {
    v1::UploadDatasetHeader header;
    header.set_name(name);
    header.set_upload_id(id);
    if (offset > 0) header.set_resume_offset(offset);
    return header;
  }
  grpc::Status Send(const v1::UploadDatasetHeader& header, const std::string& chunk, const std::string& whole,
                    v1::Dataset* dataset) {
    grpc::ClientContext context;
    auto writer = datasets_->UploadDataset(&context, dataset);
    v1::UploadDatasetRequest message;
    *message.mutable_header() = header;
    writer->Write(message);
    message.set_chunk(chunk);
    writer->Write(message);
    message.mutable_finish()->set_sha256(base::Sha256Hex(whole));
    writer->Write(message);
    writer->WritesDone();
    return writer->Finish();
  }
  grpc::Status GetStatus(const std::string& id, v1::Upload* upload) {
    v1::GetUploadRequest request;
    request.set_upload_id(id);
    return Call(uploads_, &v1::UploadService::Stub::GetUpload, request, upload);
  }
  v1::Upload Get(const std::string& id) {
    v1::Upload upload;
    const grpc::Status status = GetStatus(id, &upload);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return upload;
  }
  grpc::Status Cancel(const std::string& id) {
    v1::CancelUploadRequest request;
    request.set_upload_id(id);
    v1::CancelUploadResponse response;
    return Call(uploads_, &v1::UploadService::Stub::CancelUpload, request, &response);
  }
  std::vector<v1::Upload> List() {
    v1::ListUploadsRequest request;
    request.set_page_size(2);
    std::vector<v1::Upload> all;
    do {
      v1::ListUploadsResponse page;
      const grpc::Status status = Call(uploads_, &v1::UploadService::Stub::ListUploads, request, &page);
      EXPECT_TRUE(status.ok()) << status.error_message();
      all.insert(all.end(), page.uploads().begin(), page.uploads().end());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return all;
  }
  void Await(const std::function<bool()>& done) { EXPECT_TRUE(testing_support::Soon(done, std::chrono::minutes(1))); }
  void AwaitBytes(const std::string& id, std::int64_t bytes) {
    Await([&] {
      v1::Upload upload;
      return GetStatus(id, &upload).ok() && upload.committed_bytes() == bytes;
    });
  }
  bool DiskIsEmpty() const { return std::filesystem::is_empty(directory_ + "/state/uploads"); }

  double kept_s_ = 3600;
  std::unique_ptr<v1::UploadService::Stub> uploads_;
};

TEST_F(UploadServiceTest, C10UploadOfADatasetIsResumedAfterALostConnection) {
  BreakOff("page", "one", Rows().substr(0, 10));
  const v1::Upload upload = Get("one");
  EXPECT_EQ(upload.kind(), v1::UPLOAD_KIND_DATASET);
  EXPECT_EQ(upload.name(), "page");
  EXPECT_EQ(upload.committed_bytes(), 10);
  EXPECT_EQ(upload.num_files(), 1);
  EXPECT_TRUE(upload.has_expire_time());
  EXPECT_EQ(upload.principal(), "local");
  BreakOff("page", "one", Rows().substr(10, 5), 10);
  v1::Dataset dataset;
  EXPECT_EQ(FieldOf(Send(Header("page", "one", 14), "x", Rows(), &dataset)), "header.resume_offset");
  const grpc::Status status = Send(Header("page", "one", 15), Rows().substr(15), Rows(), &dataset);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(dataset.sha256(), base::Sha256Hex(Rows()));
  EXPECT_EQ(dataset.rows(), 2);
  EXPECT_TRUE(List().empty());
  EXPECT_TRUE(DiskIsEmpty());
  EXPECT_EQ(ReasonOf(Send(Header("other", "one", 15), "x", Rows(), &dataset)), "UPLOAD") << "it has been used";
}

TEST_F(UploadServiceTest, C10UploadOfAModelIsResumedWithinAFile) {
  const std::map<std::string, std::string> files = {
      {"a.json", "0123456789"}, {"b.bin", std::string(100, 'b')}, {"c.txt", "end"}};
  std::string all;
  for (const auto& [name, bytes] : files) all += bytes;
  const auto write = [](auto& writer, v1::UploadModelRequest message) { EXPECT_TRUE(writer->Write(message)); };
  const auto file = [](const std::string& name, std::size_t size) {
    v1::UploadModelRequest message;
    message.mutable_file()->set_path(name);
    message.mutable_file()->set_size_bytes(static_cast<std::int64_t>(size));
    return message;
  };
  const auto chunk = [](const std::string& bytes) {
    v1::UploadModelRequest message;
    message.set_chunk(bytes);
    return message;
  };
  v1::UploadModelRequest header;
  header.mutable_header()->set_name("m");
  header.mutable_header()->set_upload_id("model");
  {
    grpc::ClientContext context;
    v1::UploadModelResponse response;
    auto writer = models_->UploadModel(&context, &response);
    write(writer, header);
    write(writer, file("a.json", 10));
    write(writer, chunk(files.at("a.json")));
    write(writer, file("b.bin", 100));
    write(writer, chunk(std::string(30, 'b')));
    AwaitBytes("model", 40);
    context.TryCancel();
    EXPECT_FALSE(writer->Finish().ok());
  }
  Await([&] { return Get("model").state() == v1::UPLOAD_STATE_INTERRUPTED; });
  EXPECT_EQ(Get("model").num_files(), 2);
  header.mutable_header()->set_resume_offset(40);
  const auto rest = [&](v1::UploadModelResponse* response) {
    grpc::ClientContext context;
    auto writer = models_->UploadModel(&context, response);
    write(writer, header);
    if (header.header().resume_offset() == 40) {
      write(writer, chunk(std::string(70, 'b')));
      write(writer, file("c.txt", 3));
      write(writer, chunk("end"));
    }
    v1::UploadModelRequest finish;
    finish.mutable_finish()->set_sha256(base::Sha256Hex(all));
    write(writer, finish);
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
  };
  v1::UploadModelResponse response, again;
  rest(&response);
  EXPECT_EQ(response.upload_id(), "model");
  ASSERT_EQ(response.files_size(), 3);
  for (const auto& one : response.files()) EXPECT_EQ(one.sha256(), base::Sha256Hex(files.at(one.path()))) << one.path();
  EXPECT_EQ(Get("model").state(), v1::UPLOAD_STATE_FINISHED);
  // The answer was lost. All 113 bytes are stored, so only the finish is sent again.
  header.mutable_header()->set_resume_offset(113);
  rest(&again);
  EXPECT_EQ(again.SerializeAsString(), response.SerializeAsString());
}

TEST_F(UploadServiceTest, C10ACancelledUploadEndsItsStreamAndFreesTheDisk) {
  grpc::ClientContext context;
  v1::Dataset dataset;
  auto writer = datasets_->UploadDataset(&context, &dataset);
  v1::UploadDatasetRequest message;
  *message.mutable_header() = Header("page", "one");
  writer->Write(message);
  message.set_chunk(Rows());
  writer->Write(message);
  AwaitBytes("one", static_cast<std::int64_t>(Rows().size()));
  ASSERT_TRUE(Cancel("one").ok());
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED) << "although its client sends nothing";
  EXPECT_TRUE(DiskIsEmpty());
  v1::Upload upload;
  EXPECT_EQ(ReasonOf(GetStatus("one", &upload)), "UPLOAD");
  EXPECT_EQ(ReasonOf(Cancel("one")), "UPLOAD");
  BreakOff("page", "two", "x");
  ASSERT_TRUE(Cancel("two").ok());
  EXPECT_TRUE(DiskIsEmpty());
  EXPECT_EQ(Upload("page", Rows()).rows(), 2) << "the name is free again";
}

// Without this limit, far more than --max_dataset_bytes could be sent for a dataset whose name is in use.
TEST_F(UploadServiceTest, C10AnExistingDatasetHasTheLimitOfANewOne) {
  Upload("page", Rows());
  const std::string bytes(1001, 'x');
  for (const std::string name : {"page", "new"}) {
    v1::Dataset dataset;
    v1::UploadDatasetHeader header;
    header.set_name(name);
    const grpc::Status status = AppTest::Upload(header, bytes, &dataset, /*finish=*/false);
    EXPECT_EQ(ReasonOf(status), "UPLOAD_TOO_LARGE") << name << ": " << status.error_message();
  }
  // Bytes beyond the length of the stored dataset show that the content differs, before the last message arrives.
  v1::Dataset dataset;
  v1::UploadDatasetHeader header;
  header.set_name("page");
  EXPECT_EQ(ReasonOf(AppTest::Upload(header, Rows() + "\n", &dataset, /*finish=*/false)), "NAME_TAKEN");
  EXPECT_TRUE(AppTest::Upload(header, Rows(), &dataset).ok()) << "the same content is answered as before";
  EXPECT_TRUE(DiskIsEmpty());
}

TEST_F(UploadServiceTest, C10UnusedBytesOfOnePrincipalAreBounded) {
  const auto send = [&](const std::string& id) {
    grpc::ClientContext context;
    v1::UploadModelResponse response;
    auto writer = models_->UploadModel(&context, &response);
    v1::UploadModelRequest message;
    message.mutable_header()->set_upload_id(id);
    writer->Write(message);
    message.mutable_file()->set_path("a");
    message.mutable_file()->set_size_bytes(2000);
    writer->Write(message);
    message.set_chunk(std::string(2000, 'a'));
    writer->Write(message);
    message.mutable_finish()->set_sha256(base::Sha256Hex(std::string(2000, 'a')));
    writer->Write(message);
    writer->WritesDone();
    return writer->Finish();
  };
  EXPECT_TRUE(send("one").ok());
  EXPECT_TRUE(send("two").ok());
  EXPECT_EQ(ReasonOf(send("three")), "UPLOAD_QUOTA");
  ASSERT_EQ(List().size(), 2u) << "the refused upload is gone";
  EXPECT_EQ(List()[0].upload_id(), "one");
  ASSERT_TRUE(Cancel("one").ok());
  EXPECT_TRUE(send("three").ok());
  std::vector<std::string> ids;
  for (const v1::Upload& upload : List()) ids.push_back(upload.upload_id());
  EXPECT_EQ(ids, (std::vector<std::string>{"two", "three"}));
}

class ShortUploadTest : public UploadServiceTest {
 protected:
  ShortUploadTest() { kept_s_ = 0.01; }
};

// No call arrives that could drop the upload: the timer does.
TEST_F(ShortUploadTest, C10TimerDropsInterruptedUploads) {
  grpc::ClientContext context;
  v1::Dataset dataset;
  auto writer = datasets_->UploadDataset(&context, &dataset);
  v1::UploadDatasetRequest message;
  *message.mutable_header() = Header("page", "one");
  writer->Write(message);
  message.set_chunk(Rows());
  writer->Write(message);
  AwaitBytes("one", static_cast<std::int64_t>(Rows().size()));
  context.TryCancel();
  EXPECT_FALSE(writer->Finish().ok());
  Await([&] { return DiskIsEmpty(); });
}

}  // namespace
}  // namespace nibble
