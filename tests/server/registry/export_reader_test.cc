#include "server/registry/export_reader.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "server/base/files.h"
#include "tests/support/temp_directory.h"

namespace nibble::registry {
namespace {

using Step = ExportReader::Step;

class ExportReaderTest : public ::testing::Test {
 protected:
  void Add(const std::string& name, const std::string& bytes) {
    std::filesystem::create_directory(exported_->directory);
    std::ofstream(base::JoinPath(exported_->directory, name), std::ios::binary) << bytes;
    exported_->files.push_back({.path = name, .size_bytes = static_cast<std::int64_t>(bytes.size()), .sha256 = ""});
  }
  std::shared_ptr<ExportedFiles> Exported() {
    auto exported = std::make_shared<ExportedFiles>();
    exported->directory = directory_ / "export";
    return exported;
  }

  const testing::TempDirectory directory_;
  std::shared_ptr<ExportedFiles> exported_ = Exported();
  std::string bytes_;
};

TEST_F(ExportReaderTest, ReadsFilesInPieces) {
  const std::string large(ExportReader::kPieceBytes + 3, 'x');
  Add("a", large);
  Add("empty", "");
  Add("b", "yz");
  ExportReader reader(exported_, exported_->files);
  std::string read;
  std::vector<std::string> names;
  std::vector<std::size_t> pieces;
  for (auto step = reader.Next(bytes_); step.ok() && *step != Step::kEnd; step = reader.Next(bytes_)) {
    if (*step == Step::kFile) {
      names.push_back(reader.file().path);
    } else {
      pieces.push_back(bytes_.size());
      read += bytes_;
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a", "empty", "b"}));
  EXPECT_EQ(pieces, (std::vector<std::size_t>{static_cast<std::size_t>(ExportReader::kPieceBytes), 3, 2}));
  EXPECT_TRUE(read == large + "yz");
  EXPECT_EQ(reader.Digest(), base::Sha256Hex(large + "yz"));
}

TEST_F(ExportReaderTest, MissingOrShortFileIsDataLoss) {
  Add("a", "xyz");
  const std::string path = base::JoinPath(exported_->directory, "a");
  std::filesystem::resize_file(path, 2);
  ExportReader reader(exported_, exported_->files);
  EXPECT_EQ(reader.Next(bytes_).value_or(Step::kEnd), Step::kFile);
  EXPECT_EQ(reader.Next(bytes_).status(), absl::DataLossError("a is shorter than expected"));
  std::filesystem::remove(path);
  EXPECT_EQ(ExportReader(exported_, exported_->files).Next(bytes_).status(), absl::DataLossError("a cannot be read"));
}

TEST_F(ExportReaderTest, KeepsTheFilesWhileItReads) {
  Add("a", "xyz");
  const std::string path = base::JoinPath(exported_->directory, "a");
  {
    const ExportReader reader(exported_, exported_->files);
    exported_.reset();
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace nibble::registry
