#include "server/rpc/model_rows.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "server/base/json.h"
#include "server/base/strings.h"
#include "tests/server/model/small_models.h"

namespace nibble::rpc {
namespace {

class ModelRowsTest : public ::testing::Test {
 protected:
  store::StoredModel Stored(const std::string& name) {
    std::ifstream in(models_.bf16() + "/nibble.json");
    const std::string info((std::istreambuf_iterator<char>(in)), {});
    return {.name = name, .directory = models_.bf16(), .manifest_digest = std::string(64, 'a'), .bytes = 7,
            .created = absl::UnixEpoch(), .info = base::ParseJson(info).value()};
  }
  model::SmallModels models_;
  ModelRows rows_;
};

TEST_F(ModelRowsTest, RowIsReadOnceAndAgainWhereTheModelIsAnother) {
  store::StoredModel stored = Stored("m");
  const auto first = rows_.Get(stored, /*loaded=*/false);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->name(), "m");
  EXPECT_EQ(first->format(), v1::MODEL_FORMAT_BF16);
  EXPECT_GT(first->parameters(), 0);
  EXPECT_FALSE(first->loaded());
  std::filesystem::rename(models_.bf16() + "/config.json", models_.Path("config.json"));
  const auto again = rows_.Get(stored, /*loaded=*/true);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->loaded());
  v1::Model unloaded = *again;
  unloaded.set_loaded(false);
  EXPECT_EQ(unloaded.SerializeAsString(), first->SerializeAsString());
  store::StoredModel other = stored;
  other.manifest_digest[0] = 'b';
  EXPECT_FALSE(rows_.Get(other, false).ok()) << "it is read, and there is no config.json";
  other = stored;
  other.created += absl::Seconds(1);
  EXPECT_FALSE(rows_.Get(other, false).ok());
  EXPECT_TRUE(rows_.Get(stored, false).ok()) << "an error is not kept";
}

TEST_F(ModelRowsTest, RowsAreBounded) {
  for (std::size_t i = 0; i <= ModelRows::kMaxRows; ++i) {
    ASSERT_TRUE(rows_.Get(Stored(base::StrCat("m-", i)), false).ok());
    ASSERT_LE(rows_.size(), ModelRows::kMaxRows);
  }
  EXPECT_EQ(rows_.size(), 1u);
}

}  // namespace
}  // namespace nibble::rpc
