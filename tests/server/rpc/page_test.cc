#include "server/rpc/page.h"

#include <gtest/gtest.h>

#include "server/base/error.h"

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

TEST(PageTest, PagesOfEverySizeAreTheWholeList) {
  const std::vector<std::string> rows = {"a", "b", "c", "d", "e"};
  for (std::int64_t size = 1; size <= 6; ++size) EXPECT_EQ(Join(rows, size, [](auto&) {}), "abcde") << size;
  EXPECT_EQ(Join({}, 3, [](auto&) {}), "");
}

TEST(PageTest, WhatIsThereAllTheTimeIsShownOnce) {
  const std::vector<std::string> rows = {"a", "b", "c", "d", "e"};
  EXPECT_EQ(Join(rows, 2, [](auto& now) { std::erase(now, "b"); }), "abcde");
  EXPECT_EQ(Join(rows, 2, [](auto& now) { std::erase(now, "a"); }), "abcde");
  EXPECT_EQ(Join(rows, 2, [](auto& now) { std::erase(now, "d"); }), "abce");
  EXPECT_EQ(Join(rows, 2, [](auto& now) { if (now[0] != "0") now.insert(now.begin(), "0"); }), "abcde");
  EXPECT_EQ(Join(rows, 2, [](auto& now) { now.clear(); }), "ab");
}

TEST(PageTest, TokensAndSizesThatAreNotOursAreRefused) {
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

}  // namespace
}  // namespace nibble::rpc
