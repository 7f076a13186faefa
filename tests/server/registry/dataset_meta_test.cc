#include "server/registry/dataset_meta.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/base/error.h"

namespace nibble::registry {
namespace {

store::StoredDataset Stored(base::Json meta) {
  return {.name = "rows", .data_path = "", .sha256 = "stored", .bytes = 7, .created = {}, .meta = std::move(meta)};
}

TEST(DatasetMetaTest, DatasetsOfEarlierVersionsStayReadable) {
  EXPECT_EQ(
      base::Dump(LinesMeta({.format = data::RowFormat::kChat, .num_rows = 3, .num_bytes = 90, .empty_answers = {}})),
      R"({"format":"chat","rows":3})");
  EXPECT_EQ(base::Dump(LinesMeta({.num_rows = 3, .num_bytes = 90, .empty_answers = {2, {1, 3}}})),
            R"({"format":"text","rows":3,"empty_answers":{"count":2,"lines":[1,3]}})");
  EXPECT_EQ(base::Dump(PlainTextMeta(40, "sent")),
            R"({"format":"text","rows":1,"sent_bytes":40,"sent_sha256":"sent"})");
}

TEST(DatasetMetaTest, FileOfLinesIsAsItWasSent) {
  const auto meta = MetaOf(Stored(LinesMeta({.num_rows = 3, .num_bytes = 7, .empty_answers = {2, {1, 3}}})));
  ASSERT_TRUE(meta.ok()) << meta.status();
  EXPECT_EQ(meta->format, data::RowFormat::kText);
  EXPECT_EQ(meta->rows, 3);
  EXPECT_EQ(meta->sent_bytes, 7);
  EXPECT_EQ(meta->sent_sha256, "stored");
  EXPECT_EQ(meta->empty_answers.count, 2);
  EXPECT_EQ(meta->empty_answers.lines, (std::vector<std::int64_t>{1, 3}));
}

TEST(DatasetMetaTest, PlainTextHasTheSizeAndDigestOfTheSentFile) {
  const auto meta = MetaOf(Stored(PlainTextMeta(40, "sent")));
  ASSERT_TRUE(meta.ok()) << meta.status();
  EXPECT_EQ(meta->rows, 1);
  EXPECT_EQ(meta->sent_bytes, 40);
  EXPECT_EQ(meta->sent_sha256, "sent");
  EXPECT_EQ(meta->empty_answers.count, 0);
}

TEST(DatasetMetaTest, DamagedFileIsDataLoss) {
  for (const char* damaged :
       {R"({"format":"text","rowz":3})", R"({"format":"tent","rows":3})", R"({"rows":3})",
        R"({"format":"text","rows":"3"})", R"({"format":"text","rows":3,"sent_bytes":"1"})",
        R"({"format":"text","rows":3,"empty_answers":3})", R"({"format":"text","rows":3,"empty_answers":{"count":3}})",
        R"({"format":"text","rows":3,"empty_answers":{"count":"3","lines":[]}})"}) {
    const absl::Status status = MetaOf(Stored(base::ParseJson(damaged).value())).status();
    EXPECT_EQ(base::Reason(status), "ARTIFACT_CORRUPT") << damaged;
    EXPECT_EQ(base::ReasonMetadata(status)["dataset"], "rows") << damaged;
  }
}

TEST(DatasetMetaTest, FormatIsReadFromAFileWithOtherDamage) {
  const auto format = FormatOf(Stored({{"format", "chat"}}));
  ASSERT_TRUE(format.ok()) << format.status();
  EXPECT_EQ(*format, data::RowFormat::kChat);
  EXPECT_EQ(base::Reason(FormatOf(Stored({{"format", "tent"}})).status()), "ARTIFACT_CORRUPT");
}

}  // namespace
}  // namespace nibble::registry
