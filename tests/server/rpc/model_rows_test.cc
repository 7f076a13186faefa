#include "server/rpc/model_rows.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "server/base/json.h"
#include "server/base/strings.h"
#include "tests/server/model/files.h"
#include "tests/server/model/small_models.h"

namespace nibble::rpc {
namespace {

class ModelRowsTest : public ::testing::Test {
 protected:
  store::StoredModel Stored(const std::string& name) {
    const std::string info = model::ReadBytes(models_.bf16() + "/nibble.json");
    return {.name = name,
            .directory = models_.bf16(),
            .manifest_digest = std::string(64, 'a'),
            .bytes = 7,
            .created = absl::UnixEpoch(),
            .info = base::ParseJson(info).value()};
  }
  model::SmallModels models_;
  ModelRows rows_;
};

TEST_F(ModelRowsTest, CachesRowUntilModelOrFileChanges) {
  const store::StoredModel stored = Stored("m");
  const auto first = rows_.Get(stored, /*loaded=*/false);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->name(), "m");
  EXPECT_EQ(first->format(), v1::MODEL_FORMAT_BF16);
  EXPECT_GT(first->parameters(), 0);
  EXPECT_FALSE(first->loaded());

  // Other bytes with the same name, size and time: only reading the file again shows them.
  const std::string path = models_.bf16() + "/config.json";
  const auto time = std::filesystem::last_write_time(path);
  const auto rewrite = [&](const std::string& from, const std::string& to) {
    std::string text = model::ReadBytes(path);
    ASSERT_NE(text.find(from), std::string::npos);
    model::WriteBytes(path, text.replace(text.find(from), from.size(), to));
    std::filesystem::last_write_time(path, time);
  };
  const std::string layers = base::StrCat("\"num_hidden_layers\": ", first->architecture().num_layers());
  rewrite(layers, "\"num_hidden_layers\": x");
  const auto cached = rows_.Get(stored, /*loaded=*/true);
  ASSERT_TRUE(cached.ok()) << cached.status();
  EXPECT_TRUE(cached->loaded());
  v1::Model unloaded = *cached;
  unloaded.set_loaded(false);
  EXPECT_EQ(unloaded.SerializeAsString(), first->SerializeAsString());
  for (const auto& change : {+[](store::StoredModel& m) { m.manifest_digest[0] = 'b'; },
                             +[](store::StoredModel& m) { m.created += absl::Seconds(1); }}) {
    store::StoredModel other = stored;
    change(other);
    EXPECT_FALSE(rows_.Get(other, false).ok()) << "config.json is read again";
    EXPECT_TRUE(rows_.Get(stored, false).ok()) << "an error is not cached";
  }
  std::filesystem::last_write_time(path, time + std::chrono::seconds(1));
  EXPECT_FALSE(rows_.Get(stored, false).ok());
  rewrite("\"num_hidden_layers\": x", layers);
  EXPECT_TRUE(rows_.Get(stored, false).ok());
  std::filesystem::remove(path);
  EXPECT_FALSE(rows_.Get(stored, false).ok());
}

TEST_F(ModelRowsTest, DropsRowsOfDeletedModels) {
  std::vector<store::StoredModel> all;
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    all.push_back(Stored(name));
    ASSERT_TRUE(rows_.Get(all.back(), false).ok());
  }
  rows_.Keep(all);
  EXPECT_EQ(rows_.size(), 5u);
  all.erase(all.begin() + 3);
  all.erase(all.begin());
  all.push_back(Stored("f"));
  rows_.Keep(all);
  EXPECT_EQ(rows_.size(), 3u);
  rows_.Keep({});
  EXPECT_EQ(rows_.size(), 0u);
}

TEST_F(ModelRowsTest, WarmReadsAllRowsButThoseOfDamagedModels) {
  std::vector<store::StoredModel> all = {Stored("a"), Stored("b"), Stored("c"), Stored("d")};
  all[1].damaged = true;
  all[2].info = base::Json();  // not the info of an artifact
  rows_.Warm(all);
  EXPECT_EQ(rows_.size(), 2u);
}

TEST_F(ModelRowsTest, RowsAreBounded) {
  for (std::size_t i = 0; i <= ModelRows::kMaxRows; ++i) {
    ASSERT_TRUE(rows_.Get(Stored(base::StrCat("m-", i)), false).ok());
    ASSERT_LE(rows_.size(), ModelRows::kMaxRows);
  }
  EXPECT_EQ(rows_.size(), 1u) << "a full cache is emptied before the next row";
}

}  // namespace
}  // namespace nibble::rpc
