// Which requests Abort ends (docs/faults.md, C9).
#include "server/rpc/request_ids.h"

#include <gtest/gtest.h>

namespace nibble::rpc {
namespace {

TEST(RequestIdsTest, C9AnAbortEndsOnlyTheCallersOwnRequests) {
  RequestIds ids;
  const auth::Principal red{"ci", auth::Role::kInfer, "red"}, blue{"ci", auth::Role::kInfer, "blue"},
      ada{"ada", auth::Role::kAdmin, "red"}, admin{"root", auth::Role::kAdmin, ""};
  const base::CancelToken first, second, other;
  int notified = 0;
  RequestIds::Entry one(ids, "1", auth::OwnerOf(red), first), two(ids, "1", auth::OwnerOf(red), second),
      of_blue(ids, "1", auth::OwnerOf(blue), other);
  two.OnAbort([&notified] { ++notified; });
  EXPECT_FALSE(ids.Abort(ada, "1")) << "another principal, though an admin of the same tenant";
  EXPECT_FALSE(ids.Abort(red, "2"));
  EXPECT_FALSE(first.cancelled() || second.cancelled() || other.cancelled());
  EXPECT_TRUE(ids.Abort(red, "1"));
  EXPECT_TRUE(first.cancelled() && second.cancelled());
  EXPECT_FALSE(other.cancelled());
  EXPECT_EQ(notified, 1);
  EXPECT_TRUE(ids.Abort(admin, "1")) << "an admin without a tenant ends requests of all";
  EXPECT_TRUE(other.cancelled());
}

}  // namespace
}  // namespace nibble::rpc
