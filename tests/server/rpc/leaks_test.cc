// Tests FindLeaks, which finds internals of the server in a text, and WithoutInternals, which removes paths and
// addresses from texts for clients.
#include "tests/support/leaks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/rpc/status.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing_support::FindLeaks;

TEST(FindLeaksTest, FindsEachKindOfLeakButNoneInCleanedText) {
  EXPECT_THAT(FindLeaks("open /var/lib/x: a/b (/srv/data/x)"), ElementsAre("/var/l", "/srv/d"));
  EXPECT_THAT(FindLeaks("x+/tmp/a at 0x7ffdeadbeef0"), ElementsAre("/tmp/a", "0x7ffdeadbeef0"));
  EXPECT_THAT(FindLeaks("app.cc:12 lib.rs:7"), ElementsAre("p.cc", "b.rs"));
  EXPECT_THAT(FindLeaks("SELECT a FROM jobs: no such table"), ElementsAre("SELECT ", "no such table"));
  EXPECT_THAT(FindLeaks("std::bad_alloc [json.exception.parse_error.101] thread panicked at"),
              ElementsAre("std::b", "json.exception", "panicked at"));
  EXPECT_THAT(FindLeaks("open .../x.json at 0x..., /tmp, /etc/, a/b/c, tokens/s, 0x1f, std:: x, x.cc: 1, SELECT a"),
              IsEmpty());
}

TEST(WithoutInternalsTest, KeepsTheLastPartOfAPathAndRemovesAddresses) {
  EXPECT_EQ(rpc::WithoutInternals("open /var/lib/nibble/models/m/x.json: No such file"),
            "open .../x.json: No such file");
  EXPECT_EQ(rpc::WithoutInternals("\"/a/b/\" and (/c/d) at 0x7ffdeadbeef0, path=/e/f"),
            "\".../b/\" and (.../d) at 0x..., path=.../f");
  EXPECT_EQ(rpc::WithoutInternals("tokens/s, and/or, 1/2/3, /tmp, a/b/c, 0x1f"),
            "tokens/s, and/or, 1/2/3, /tmp, a/b/c, 0x1f");
  EXPECT_EQ(rpc::WithoutInternals("/"), "/");
  EXPECT_EQ(rpc::WithoutInternals("///"), "///");
  EXPECT_EQ(rpc::WithoutInternals(""), "");
}

}  // namespace
}  // namespace nibble
