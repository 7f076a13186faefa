#include "server/registry/uploaded_model.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/base/error.h"
#include "server/base/files.h"
#include "server/store/layout.h"
#include "tests/support/field_of.h"
#include "tests/support/temp_directory.h"

namespace nibble::registry {
namespace {

using nibble::testing::FieldOf;
class UploadedModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(base::RealFileSystem().CreateDirectories(paths_.uploads()).ok());
    auto upload =
        store::Upload::Begin(base::RealFileSystem(), paths_,
                             {.max_file_bytes = 100, .max_total_bytes = 100, .max_files = 2, .min_free_bytes = 1});
    ASSERT_TRUE(upload.ok()) << upload.status();
    model_ = std::make_unique<UploadedModel>(*std::move(upload));
    auto stream =
        table_.Begin({.owner = {}, .id = "u", .kind = UploadKind::kModel, .name = "m"}, [](const absl::Status&) {});
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
  }
  absl::Status Append(const std::string& bytes) {
    base::MutexLock lock(stream_->using_content());
    return model_->Append(bytes, *stream_);
  }

  const testing::TempDirectory directory_;
  const store::StatePaths paths_{directory_ / "state"};
  base::FakeClock clock_{absl::FromUnixSeconds(1'700'000'000)};
  UploadTable table_{clock_, {.max_bytes_per_principal = 8}};
  std::unique_ptr<UploadTable::Stream> stream_;
  std::unique_ptr<UploadedModel> model_;
};

TEST_F(UploadedModelTest, KnowsItsFilesAndTheirDigests) {
  ASSERT_TRUE(model_->BeginFile({.path = "a", .size_bytes = 3, .sha256 = ""}).ok());
  EXPECT_EQ(model_->num_files(), 1);
  ASSERT_TRUE(Append("ab").ok());
  ASSERT_TRUE(Append("c").ok());
  ASSERT_TRUE(model_->BeginFile({.path = "b", .size_bytes = 0, .sha256 = ""}).ok());
  EXPECT_EQ(FieldOf(model_->Finish("x")), "finish.sha256");
  ASSERT_TRUE(model_->Finish(base::Sha256Hex("abc")).ok());
  EXPECT_TRUE(model_->Finish(base::Sha256Hex("abc")).ok()) << "it can be repeated";
  ASSERT_EQ(model_->files().size(), 2u);
  EXPECT_EQ(model_->files()[0].path, "a");
  EXPECT_EQ(model_->files()[0].size_bytes, 3);
  EXPECT_EQ(model_->files()[0].sha256, base::Sha256Hex("abc"));
  EXPECT_EQ(model_->files()[1].sha256, base::Sha256Hex(""));
  EXPECT_EQ(base::RealFileSystem().Read(model_->directory() + "/a", 10).value_or(""), "abc");
  EXPECT_EQ(FieldOf(model_->BeginFile({.path = "c", .size_bytes = 0, .sha256 = ""})), "file");
}

TEST_F(UploadedModelTest, RefusesFilesOfAnotherSize) {
  EXPECT_EQ(FieldOf(Append("a")), "chunk");
  EXPECT_EQ(FieldOf(model_->Finish("x")), "file");
  EXPECT_EQ(FieldOf(model_->BeginFile({.path = "a", .size_bytes = -1, .sha256 = ""})), "file.size_bytes");
  EXPECT_EQ(FieldOf(model_->BeginFile({.path = "a", .size_bytes = 1, .sha256 = "x"})), "file.sha256");
  ASSERT_TRUE(model_->BeginFile({.path = "a", .size_bytes = 2, .sha256 = ""}).ok());
  ASSERT_TRUE(Append("a").ok());
  EXPECT_EQ(FieldOf(Append("bc")), "file.size_bytes");
  EXPECT_EQ(FieldOf(model_->BeginFile({.path = "b", .size_bytes = 0, .sha256 = ""})), "file.size_bytes");
}

TEST_F(UploadedModelTest, ChargesBytesBeforeItTakesThem) {
  ASSERT_TRUE(model_->BeginFile({.path = "a", .size_bytes = 9, .sha256 = ""}).ok());
  EXPECT_EQ(base::Reason(Append("123456789")), "UPLOAD_QUOTA");
  EXPECT_TRUE(Append("12345678").ok());
}

}  // namespace
}  // namespace nibble::registry
