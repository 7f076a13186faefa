#include "server/operations/operation_index.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "server/base/strings.h"

namespace nibble::operations {
namespace {

using base::StrCat;

OperationIndex::Entry Made(const std::string& name, const auth::RequestOwner& owner, const std::string& request_id = "",
                           std::int64_t created_s = 0) {
  auto entry = std::make_shared<OperationEntry>();
  entry->stored.operation = std::make_shared<const Operation>(
      Operation{.name = name, .metadata = {.created = absl::FromUnixSeconds(created_s)}});
  entry->stored.owner = owner;
  entry->stored.request_id = request_id;
  return entry;
}

void End(OperationIndex& index, const OperationIndex::Entry& entry, int second, bool files = false) {
  entry->stored.ended = absl::FromUnixSeconds(second);
  entry->state = OperationState::kDone;
  if (files) {
    entry->held = std::make_shared<const int>(1);
    entry->held_until = absl::Seconds(second + 10);
  }
  index.Ended(entry);
}

auth::RequestOwner Ann() { return {.tenant = "red", .name = "ann"}; }
auth::RequestOwner Bob() { return {.tenant = "blue", .name = "bob"}; }

TEST(OperationIndexTest, FindsByNameTenantAndRequestIdOfTheOwner) {
  OperationIndex index;
  const auto one = Made("op-1", Ann(), "id"), two = Made("op-2", Bob(), "id");
  index.Add(one);
  index.Add(two);
  EXPECT_EQ(index.Find("op-1"), one);
  EXPECT_EQ(index.Find("op-3"), nullptr);
  EXPECT_EQ(index.FindRequest(Ann(), "id"), one);
  EXPECT_EQ(index.FindRequest(Bob(), "id"), two);
  EXPECT_EQ(index.FindRequest({.tenant = "red", .name = "bob"}, "id"), nullptr);
  EXPECT_EQ(index.OfTenant("").size(), 2u);
  EXPECT_EQ(index.OfTenant("red").size(), 1u);
  EXPECT_EQ(index.OfTenant("green").size(), 0u);
  index.Remove(index.Find("op-1"));
  EXPECT_EQ(index.Find("op-1"), nullptr);
  EXPECT_EQ(index.FindRequest(Ann(), "id"), nullptr);
  EXPECT_EQ(index.OfTenant("red").size(), 0u);
}

TEST(OperationIndexTest, CountsOpenOperations) {
  OperationIndex index;
  const auto one = Made("op-1", Ann()), two = Made("op-2", Ann()), three = Made("op-3", Ann());
  for (const auto& entry : {one, two, three}) index.Add(entry);
  EXPECT_EQ(index.num_open(Ann()), 3);
  End(index, one, 5);
  EXPECT_EQ(index.num_open(Ann()), 2);
  index.Remove(one);
  index.Remove(two);
  EXPECT_EQ(index.num_open(Ann()), 1);
  EXPECT_EQ(index.num_open(Bob()), 0);
}

TEST(OperationIndexTest, FindsOldOperationsAndFilesThatAreDue) {
  OperationIndex index;
  const auto first = Made("op-b", Ann(), "id"), second = Made("op-a", Bob());
  index.Add(first);
  index.Add(second);
  EXPECT_EQ(index.EndedBefore(absl::InfiniteFuture()), nullptr) << "both run";
  End(index, second, 7);
  End(index, first, 5, /*files=*/true);
  EXPECT_EQ(index.EndedBefore(absl::FromUnixSeconds(5)), nullptr);
  EXPECT_EQ(index.EndedBefore(absl::FromUnixSeconds(6)), first);
  EXPECT_EQ(index.WithFilesDue(absl::Seconds(14)), nullptr);
  EXPECT_EQ(index.WithFilesDue(absl::Seconds(15)), first);
  EXPECT_NE(index.TakeFiles(*first), nullptr);
  EXPECT_EQ(index.WithFilesDue(absl::InfiniteDuration()), nullptr);
  EXPECT_EQ(index.FindRequest(Ann(), "id"), nullptr) << "the id is forgotten with the files";
  index.Remove(first);
  EXPECT_EQ(index.EndedBefore(absl::InfiniteFuture()), second);
}

// Two operations have the same request id if the server crashes before it removes the file of the older one.
TEST(OperationIndexTest, RequestIdOfTwoRecordsBelongsToTheNewerOperation) {
  for (const bool newer_first : {false, true}) {
    OperationIndex index;
    const auto older = Made("op-2", Ann(), "id", 1), newer = Made("op-1", Ann(), "id", 2);
    index.Add(newer_first ? newer : older);
    index.Add(newer_first ? older : newer);
    EXPECT_EQ(index.FindRequest(Ann(), "id"), newer);
    index.Remove(older);
    EXPECT_EQ(index.FindRequest(Ann(), "id"), newer);
  }
}

// docs/faults.md, C9.
TEST(OperationIndexTest, C9OperationsWithFilesAreRemovedLast) {
  OperationIndex index;
  const auto surplus = [&] { return index.Surplus(Ann(), /*done_at_once=*/false); };
  for (std::size_t i = 0; i < OperationIndex::kMaxEndedOfOwner; ++i) {
    EXPECT_EQ(surplus(), nullptr);
    const auto entry = Made(StrCat("op-", i), Ann());
    index.Add(entry);
    End(index, entry, static_cast<int>(i), /*files=*/i < 10);
  }
  EXPECT_EQ(index.Surplus(Ann(), /*done_at_once=*/true), nullptr) << "they have their own bound";
  EXPECT_EQ(index.Surplus(Bob(), /*done_at_once=*/false), nullptr);
  EXPECT_EQ(surplus(), index.Find("op-10"));
  index.TakeFiles(*index.Find("op-3"));
  EXPECT_EQ(surplus(), index.Find("op-3"));
  // If all hold files, the oldest is removed.
  for (std::size_t i = 0; i < OperationIndex::kMaxEndedOfOwner; ++i) {
    const auto entry = Made(StrCat("export-", i), Ann());
    index.Remove(surplus());
    index.Add(entry);
    End(index, entry, 5000 + static_cast<int>(i), /*files=*/true);
  }
  EXPECT_EQ(surplus(), index.Find("export-0"));
}

// docs/faults.md, C1. If each call walked over all operations, the test would take minutes.
TEST(OperationIndexTest, C1TimeDoesNotGrowWithTheNumberOfOperations) {
  OperationIndex index;
  const auto seconds = [&](int rounds) {
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; ++i) {
      const auth::RequestOwner owner{.tenant = "", .name = StrCat("owner-", i % 1000)};
      const auto entry = Made(StrCat("new-", i), owner, StrCat("id-", i));
      EXPECT_EQ(index.FindRequest(owner, entry->stored.request_id), nullptr);
      EXPECT_GE(index.num_open(owner), 0);
      EXPECT_EQ(index.Surplus(owner, /*done_at_once=*/false), nullptr);
      EXPECT_EQ(index.EndedBefore(absl::UnixEpoch()), nullptr);
      index.Add(entry);
      EXPECT_EQ(index.OfTenant("").upper_bound("new")->first.substr(0, 3), "new");
      End(index, entry, i);
      index.Remove(entry);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  const double few = seconds(20'000);
  for (int i = 0; i < 100'000; ++i) {
    const auto entry = Made(StrCat("op-", i), {.tenant = "", .name = StrCat("owner-", i % 1000)}, StrCat("id-of-", i));
    index.Add(entry);
    End(index, entry, i);
  }
  const double many = seconds(20'000);
  std::printf("20000 operations added, ended and removed: %.3f s alone, %.3f s beside 100000 others\n", few, many);
  EXPECT_LT(many, 5.0);
}

}  // namespace
}  // namespace nibble::operations
