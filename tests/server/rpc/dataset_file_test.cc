// The file of a dataset: its name, and the download.
#include <gtest/gtest.h>

#include <string>

#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/tiny_job.h"

namespace nibble {
namespace {

using testing_support::AppTest;
using testing_support::FieldOf;
using testing_support::kTinyTexts;
using testing_support::ReasonOf;

class DatasetFileTest : public AppTest {};

TEST_F(DatasetFileTest, FileNameIsKept) {
  v1::UploadDatasetHeader header;
  header.set_name("named");
  header.set_file_name("rows of \xC3\xA4 caf\xC3\xA9.jsonl");
  v1::Dataset dataset;
  ASSERT_TRUE(AppTest::Upload(header, kTinyTexts, &dataset).ok());
  v1::GetDatasetRequest get;
  get.set_name("named");
  ASSERT_TRUE(Call(datasets_, &v1::DatasetService::Stub::GetDataset, get, &dataset).ok());
  EXPECT_EQ(dataset.file_name(), header.file_name());
  for (const std::string& bad : {std::string(256, 'a'), std::string("a\nb"), std::string("a\0b", 3)}) {
    header.set_name("bad");
    header.set_file_name(bad);
    EXPECT_EQ(FieldOf(AppTest::Upload(header, kTinyTexts, &dataset)), "header.file_name");
  }
}

TEST_F(DatasetFileTest, DownloadHasTheBytesOfTheUpload) {
  std::string rows;
  for (int i = 0; i < 20'000; ++i) rows += "{\"text\": \"row " + std::to_string(i) + "\"}\n";
  v1::Dataset dataset;
  v1::UploadDatasetHeader header;
  header.set_format(v1::DATASET_FORMAT_TEXT);
  header.set_name("rows");
  ASSERT_TRUE(AppTest::Upload(header, rows, &dataset).ok());
  header.set_name("plain");
  ASSERT_TRUE(AppTest::Upload(header, "one \"text\"", &dataset).ok());
  const auto download = [&](const std::string& name, std::string* bytes) {
    grpc::ClientContext context;
    v1::DownloadDatasetRequest request;
    request.set_name(name);
    const auto reader = datasets_->DownloadDataset(&context, request);
    for (v1::DownloadDatasetResponse piece; reader->Read(&piece);) {
      EXPECT_LE(piece.chunk().size(), 256u << 10);
      *bytes += piece.chunk();
    }
    return reader->Finish();
  };
  std::string bytes, plain, none;
  EXPECT_TRUE(download("rows", &bytes).ok());
  EXPECT_TRUE(bytes == rows);
  EXPECT_TRUE(download("plain", &plain).ok());
  EXPECT_EQ(plain, "{\"text\":\"one \\\"text\\\"\"}\n");
  EXPECT_EQ(ReasonOf(download("absent", &none)), "DATASET");
  EXPECT_EQ(none, "");
}

}  // namespace
}  // namespace nibble
