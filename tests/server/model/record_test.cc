#include "server/model/record.h"

#include <cmath>

#include "server/base/error.h"
#include "server/base/sha256.h"
#include "tests/server/model/files.h"

namespace nibble::model {
namespace {

Record Sample() {
  Record record;
  record.weights_digest = base::Sha256Hex("weights");
  const float logits[2] = {1.0f, -2.5f};
  record.sequences.push_back({{5, 7}, {RowDigest(logits, 2), RowDigest(logits, 1)}});
  record.sequences.push_back({{0}, {base::Sha256Hex("row")}});
  return record;
}

TEST(RecordTest, RoundTrips) {
  const auto record = ParseRecord(SerializeRecord(Sample()));
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->num_rows(), 3);
  EXPECT_EQ(record->weights_digest, Sample().weights_digest);
  EXPECT_EQ(record->sequences[0].token_ids, (std::vector<std::int32_t>{5, 7}));
  EXPECT_EQ(record->sequences[0].row_digests, Sample().sequences[0].row_digests);
  EXPECT_EQ(SerializeRecord(*record), SerializeRecord(Sample()));
}

TEST(RecordTest, OneUlpChangesTheRowDigest) {
  const float logits[2] = {1.0f, 2.0f};
  const float other[2] = {1.0f, std::nextafter(2.0f, 3.0f)};
  EXPECT_NE(RowDigest(logits, 2), RowDigest(other, 2));
}

TEST(RecordTest, DetectsEveryFlippedBitAndTruncation) {
  const std::string whole = SerializeRecord(Sample());
  for (std::size_t i = 0; i < whole.size() * 8; ++i) {
    std::string bytes = whole;
    bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ (1 << (i % 8)));
    EXPECT_TRUE(absl::IsDataLoss(ParseRecord(bytes).status())) << i;
  }
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(ParseRecord(whole.substr(0, size)).status())) << size;
  }
}

TEST(RecordTest, RejectsWrongCountsUnderAValidChecksum) {
  const std::string whole = SerializeRecord(Sample());
  const std::string body = whole.substr(0, whole.size() - 64);
  // The offsets of the device, the number of sequences, and the number of tokens of the first sequence.
  for (const std::size_t at : {8u, 8u + 4 + 64, 8u + 4 + 64 + 4}) {
    std::string bytes = body;
    bytes.replace(at, 4, "\xff\xff\xff\x7f");
    EXPECT_TRUE(absl::IsDataLoss(ParseRecord(bytes + base::Sha256Hex(bytes)).status())) << at;
  }
  EXPECT_TRUE(absl::IsDataLoss(ParseRecord(body + "x" + base::Sha256Hex(body + "x")).status()));
  EXPECT_TRUE(ParseRecord(body + base::Sha256Hex(body)).ok());
}

TEST(RecordTest, RecordIsWrittenToAndReadFromAnArtifact) {
  TempDirectory directory;
  base::FileSystem& files = base::RealFileSystem();
  const auto none = ReadRecord(files, directory.path());
  EXPECT_TRUE(absl::IsFailedPrecondition(none.status()));
  EXPECT_EQ(base::Reason(none.status()), "NO_RECORD");
  ASSERT_TRUE(WriteRecord(files, directory.path(), Sample()).ok());
  EXPECT_EQ(ReadRecord(files, directory.path())->num_rows(), 3);
  Record unbalanced = Sample();
  unbalanced.sequences[0].token_ids.pop_back();
  EXPECT_FALSE(WriteRecord(files, directory.path(), unbalanced).ok());
}

}  // namespace
}  // namespace nibble::model
