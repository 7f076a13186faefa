#include "server/rpc/page.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "nibble/v1/dataset_service.pb.h"
#include "server/base/error.h"
#include "server/rpc/call.h"

namespace nibble::rpc {
namespace {

std::string Itself(const std::string& row) { return row; }

// Rows joined from the first page to the last; `between` changes the list after each page.
template <typename Between>
std::string Join(std::vector<std::string> rows, std::int64_t size, Between between) {
  std::string joined, token;
  do {
    const auto page = PageOf(rows, Itself, size, token);
    EXPECT_TRUE(page.ok()) << page.status();
    if (!page.ok()) return joined;
    EXPECT_LE(page->end - page->begin, static_cast<std::size_t>(size));
    for (std::size_t i = page->begin; i < page->end; ++i) joined += rows[i];
    token = page->next_token;
    between(rows);
  } while (!token.empty());
  return joined;
}

TEST(PageTest, PagesOfEverySizeCoverTheWholeList) {
  const std::vector<std::string> rows = {"a", "b", "c", "d", "e"};
  for (std::int64_t size = 1; size <= 6; ++size) EXPECT_EQ(Join(rows, size, [](auto&) {}), "abcde") << size;
  EXPECT_EQ(Join({}, 3, [](auto&) {}), "");
}

TEST(PageTest, RowThatStaysIsShownOnce) {
  const std::vector<std::string> rows = {"a", "b", "c", "d", "e"};
  EXPECT_EQ(Join(rows, 2, [](auto& now) { std::erase(now, "b"); }), "abcde");
  EXPECT_EQ(Join(rows, 2, [](auto& now) { std::erase(now, "a"); }), "abcde");
  EXPECT_EQ(Join(rows, 2, [](auto& now) { std::erase(now, "d"); }), "abce");
  EXPECT_EQ(Join(rows, 2,
                 [](auto& now) {
                   if (now[0] != "0") now.insert(now.begin(), "0");
                 }),
            "abcde");
  EXPECT_EQ(Join(rows, 2, [](auto& now) { now.clear(); }), "ab");
}

TEST(PageTest, ForeignTokensAndInvalidSizesAreRefused) {
  const std::vector<std::string> rows = {"a"};
  for (const char* token : {"a", "1", "after", "after:", "AFTER:a", " after:a"}) {
    EXPECT_EQ(base::Reason(PageOf(rows, Itself, 1, token).status()), "PAGE_TOKEN") << token;
  }
  for (const char* token : {"a", "-1", "1x", "after:a", "9999999999999999999"}) {
    EXPECT_EQ(base::Reason(ParsePageToken(token).status()), "PAGE_TOKEN") << token;
  }
  for (const std::int64_t size : {-1, 1001}) {
    EXPECT_EQ(base::Reason(PageOf(rows, Itself, size, "").status()), "FIELD_VIOLATION") << size;
  }
}

TEST(PageBytesTest, FirstRowIsAlwaysTakenAndFurtherRowsWhileTheyFit) {
  PageBytes bytes(2000);
  EXPECT_TRUE(bytes.Take(1 << 20));
  EXPECT_FALSE(bytes.Take(0));
  PageBytes other(2000);
  EXPECT_TRUE(other.Take(700));
  EXPECT_TRUE(other.Take(700));
  EXPECT_FALSE(other.Take(700));
  EXPECT_TRUE(other.Take(10)) << "a refused row takes nothing";
}

// Fills a page with datasets of these names; a client must be able to receive the serialized page.
absl::StatusOr<std::string> Fill(const std::vector<std::string>& names, std::size_t row_bytes, const std::string& token,
                                 std::size_t most, v1::ListDatasetsResponse& page) {
  const auto row_of = [&](const std::string& name) -> absl::StatusOr<std::optional<v1::Dataset>> {
    if (name == "gone") return std::nullopt;
    v1::Dataset row;
    row.set_name(name);
    row.set_sha256(std::string(row_bytes, 'x'));
    return row;
  };
  return FillPage(names, Itself, kMaxPageSize, token, most, row_of, *page.mutable_datasets());
}

TEST(PageTest, PageOfLongRowsEndsAtItsBytesAndTheNextContinues) {
  std::vector<std::string> names;
  for (int i = 100; i < 1000; ++i) names.push_back(std::to_string(i));
  const std::size_t most = CallEnvironment::kMaxPageBytes;
  std::vector<std::string> seen;
  std::string token;
  int pages = 0;
  do {
    v1::ListDatasetsResponse page;
    const auto next = Fill(names, 10'000, token, most, page);
    ASSERT_TRUE(next.ok()) << next.status();
    page.set_next_page_token(*next);
    EXPECT_LE(page.ByteSizeLong(), most);
    if (!next->empty()) {
      EXPECT_GT(page.ByteSizeLong(), most - 12'000);
    }
    for (const v1::Dataset& row : page.datasets()) seen.push_back(row.name());
    token = *next;
    ++pages;
  } while (!token.empty() && pages < 100);
  EXPECT_EQ(seen, names);
  EXPECT_EQ(pages, 5);  // 900 rows of 10 kB, 209 in 2 MiB
}

TEST(PageTest, RowLongerThanAPageIsItsOwnPage) {
  const std::vector<std::string> names = {"a", "b", "c"};
  std::string token;
  for (const std::string& name : names) {
    v1::ListDatasetsResponse page;
    const auto next = Fill(names, 5000, token, /*most=*/1000, page);
    ASSERT_TRUE(next.ok()) << next.status();
    ASSERT_EQ(page.datasets_size(), 1);
    EXPECT_EQ(page.datasets(0).name(), name);
    token = *next;
  }
  EXPECT_EQ(token, "");
}

TEST(PageTest, DeletedRowIsLeftOutAndDoesNotEndThePage) {
  v1::ListDatasetsResponse page;
  const auto next = Fill({"a", "gone", "z"}, 10, "", 1 << 20, page);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(*next, "");
  ASSERT_EQ(page.datasets_size(), 2);
  EXPECT_EQ(page.datasets(1).name(), "z");
}

}  // namespace
}  // namespace nibble::rpc
