#include "server/registry/uploaded_dataset.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/files.h"
#include "server/store/state_directory.h"
#include "tests/support/field_of.h"
#include "tests/support/temp_directory.h"

namespace nibble::registry {
namespace {

using nibble::testing::FieldOf;
using ::testing::HasSubstr;

constexpr char kRows[] = "{\"text\": \"a b\"}\n{\"text\": \"c\"}\n";

class UploadedDatasetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(directory_ / "root");
    std::ofstream(directory_ / "root/rows.jsonl") << kRows;
    auto state = store::StateDirectory::Open(base::RealFileSystem(), directory_ / "state",
                                             {.max_file_bytes = 200, .max_total_bytes = 1000, .min_free_bytes = 1});
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    auto stream =
        table_.Begin({.owner = {}, .id = "u", .kind = UploadKind::kDataset, .name = "d"}, [](const absl::Status&) {});
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
  }
  NewDataset Named(const std::string& name, std::optional<data::RowFormat> format = std::nullopt) {
    NewDataset dataset;
    dataset.name = name;
    dataset.format = format;
    dataset.import_root = directory_ / "root";
    return dataset;
  }
  // Begins, appends and finishes an upload. sha256 unset: the right one.
  absl::StatusOr<store::StoredDataset> Upload(NewDataset dataset, const std::string& bytes,
                                              std::optional<std::string> sha256 = std::nullopt) {
    base::MutexLock lock(stream_->using_content());
    stream_->content().reset();  // the previous upload reserves its name
    auto content = UploadedDataset::Begin(*state_->datasets, std::move(dataset));
    if (!content.ok()) return content.status();
    stream_->content() = *std::move(content);
    auto& uploaded = static_cast<UploadedDataset&>(*stream_->content());
    if (const absl::Status added = bytes.empty() ? absl::OkStatus() : uploaded.Append(bytes, *stream_); !added.ok())
      return added;
    return uploaded.Finish(sha256.value_or(base::Sha256Hex(bytes)), *stream_);
  }

  const testing::TempDirectory directory_;
  base::FakeClock clock_{absl::FromUnixSeconds(1'700'000'000)};
  UploadTable table_{clock_, {}};
  std::unique_ptr<store::StateDirectory> state_;
  std::unique_ptr<UploadTable::Stream> stream_;
};

TEST_F(UploadedDatasetTest, ContentBecomesADataset) {
  const auto stored = Upload(Named("d"), kRows);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->name, "d");
  EXPECT_EQ(stored->sha256, base::Sha256Hex(kRows));
  EXPECT_EQ(base::RealFileSystem().Read(stored->data_path, 1000).value_or(""), kRows);
  EXPECT_EQ(base::Dump(stored->meta), R"({"format":"text","rows":2})");
}

TEST_F(UploadedDatasetTest, PlainTextBecomesOneRow) {
  const std::string text = "Once\n\"upon\" a time\n";
  const auto stored = Upload(Named("d", data::RowFormat::kText), text);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(base::RealFileSystem().Read(stored->data_path, 1000).value_or(""),
            "{\"text\":\"Once\\n\\\"upon\\\" a time\\n\"}\n");
  EXPECT_EQ(stored->meta["sent_sha256"], base::Sha256Hex(text));
  // The digest of the sent text identifies the dataset, not the digest of the stored row.
  EXPECT_TRUE(Upload(Named("d", data::RowFormat::kText), text).ok());
}

TEST_F(UploadedDatasetTest, WrongContentLeavesNothing) {
  EXPECT_EQ(FieldOf(Upload(Named("d"), kRows, std::string(64, '0')).status()), "finish.sha256");
  EXPECT_EQ(FieldOf(Upload(Named("d"), kRows, "").status()), "finish.sha256") << "only for a server's file";
  EXPECT_EQ(base::Reason(Upload(Named("d"), "").status()), "DATASET_EMPTY");
  EXPECT_EQ(base::Reason(Upload(Named("d"), "a text").status()), "DATASET_FORMAT");
  EXPECT_EQ(base::Reason(Upload(Named("d", data::RowFormat::kText), "\xe9t\xe9").status()), "DATASET_FORMAT");
  NewDataset narrow = Named("d");
  narrow.max_line_bytes = 14;
  EXPECT_THAT(std::string(Upload(narrow, kRows).status().message()), HasSubstr("line 1: longer than 14 bytes"));
  EXPECT_EQ(base::Reason(Upload(Named("d"), std::string(201, ' ')).status()), "UPLOAD_TOO_LARGE");
  stream_->content().reset();
  EXPECT_TRUE(absl::IsNotFound(state_->datasets->Get("d").status()));
  EXPECT_TRUE(Upload(Named("d"), kRows).ok()) << "the name is free";
}

TEST_F(UploadedDatasetTest, TakenNameAcceptsOnlyTheSameContent) {
  ASSERT_TRUE(Upload(Named("d"), kRows).ok());
  const auto again = Upload(Named("d"), kRows);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->sha256, base::Sha256Hex(kRows));
  std::string same_size = kRows;
  same_size[11] = 'x';
  for (const std::string& other : {same_size, kRows + std::string("\n")}) {
    const absl::Status refused = Upload(Named("d"), other).status();
    EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
    EXPECT_EQ(base::Reason(refused), "NAME_TAKEN");
    EXPECT_EQ(base::ReasonMetadata(refused)["name"], "d");
  }
}

TEST_F(UploadedDatasetTest, FileOfTheServerIsCopied) {
  NewDataset mine = Named("mine");
  mine.server_path = "rows.jsonl";
  const auto stored = Upload(mine, "", "");
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->sha256, base::Sha256Hex(kRows));
  std::ofstream(directory_ / "root/rows.jsonl") << "changed";
  EXPECT_EQ(base::RealFileSystem().Read(stored->data_path, 1000).value_or(""), kRows);
}

TEST_F(UploadedDatasetTest, FilesThatCannotBeImportedAreRefused) {
  NewDataset dataset = Named("mine");
  dataset.server_path = "../state";
  EXPECT_EQ(base::Reason(Upload(dataset, "", "").status()), "IMPORT_ROOT");
  dataset.server_path = ".";
  const absl::Status of_directory = Upload(dataset, "", "").status();
  EXPECT_EQ(FieldOf(of_directory), "header.server_path");
  EXPECT_THAT(std::string(of_directory.message()), HasSubstr("is not a readable file"));
  dataset.import_root = "";
  EXPECT_TRUE(absl::IsPermissionDenied(Upload(dataset, "", "").status()));
}

}  // namespace
}  // namespace nibble::registry
