#include "server/store/disk_reserve.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/server/store/faulty_files.h"
#include "tests/support/temp_directory.h"

namespace nibble::store {
namespace {

constexpr std::uint64_t kMuch = std::uint64_t{1} << 40;

// A disk whose free space the test sets.
class Disk : public FaultyFiles {
 public:
  Disk() : FaultyFiles(1 << 30) {}
  absl::StatusOr<std::uint64_t> FreeBytes(const std::string&) override { return free; }
  std::uint64_t free = kMuch;
};

class DiskReserveTest : public ::testing::Test {
 protected:
  std::unique_ptr<DiskReserve> Open() {
    auto reserve = DiskReserve::Open(disk_, path_);
    EXPECT_TRUE(reserve.ok()) << reserve.status();
    return *std::move(reserve);
  }
  struct stat Stat() const {
    struct stat info = {};
    EXPECT_EQ(::stat(path_.c_str(), &info), 0);
    return info;
  }

  nibble::testing::TempDirectory temp_;
  const std::string path_ = temp_ / "reserve";
  DiskWithRoom disk_{kMuch};
};

TEST_F(DiskReserveTest, ReleasesInPiecesAndRefillsWhenThereIsRoom) {  // R8
  const auto reserve = Open();
  EXPECT_EQ(reserve->bytes(), kReserveBytes);
  EXPECT_GE(static_cast<std::uint64_t>(Stat().st_blocks) * 512, kReserveBytes) << "a hole reserves no space";
  EXPECT_TRUE(reserve->Release());
  EXPECT_EQ(reserve->bytes(), kReserveBytes - kReservePieceBytes);
  int pieces = 1;
  while (reserve->Release()) ++pieces;
  EXPECT_EQ(pieces, static_cast<int>(kReserveBytes / kReservePieceBytes));
  EXPECT_EQ(reserve->bytes(), 0u);
  EXPECT_EQ(Stat().st_size, 0);
  EXPECT_EQ(Stat().st_blocks, 0);

  disk_.free = 4 * kReserveBytes - 1;
  reserve->Refill();
  EXPECT_EQ(reserve->bytes(), 0u) << "others need it more";
  disk_.free = 4 * kReserveBytes;
  reserve->Refill();
  EXPECT_EQ(reserve->bytes(), kReserveBytes);
  EXPECT_GE(static_cast<std::uint64_t>(Stat().st_blocks) * 512, kReserveBytes);
}

TEST_F(DiskReserveTest, OpenTakesOverAnExistingFile) {
  EXPECT_TRUE(Open()->Release());
  disk_.free = 0;
  EXPECT_EQ(Open()->bytes(), kReserveBytes - kReservePieceBytes);
  disk_.free = kMuch;
  EXPECT_EQ(Open()->bytes(), kReserveBytes);
}

TEST_F(DiskReserveTest, MakesRoomForAStartOnAFullDisk) {  // R8
  const auto reserve = Open();
  constexpr std::uint64_t kWanted = 2 * kReservePieceBytes;
  for (const std::uint64_t free : {kMuch, kWanted}) {
    disk_.free = free;
    reserve->MakeRoom(kWanted);
    EXPECT_EQ(reserve->bytes(), kReserveBytes);
  }
  disk_.free = kWanted - 1;  // stays the same, as if other programs took the released space
  reserve->MakeRoom(kWanted);
  EXPECT_EQ(reserve->bytes(), kReserveBytes - kWanted) << "released more than requested";
  while (reserve->Release()) {
  }
  reserve->MakeRoom(kWanted);
  EXPECT_EQ(reserve->bytes(), 0u);
}

TEST_F(DiskReserveTest, MissingDirectoryIsAnError) {
  EXPECT_EQ(DiskReserve::Open(disk_, temp_ / "no/reserve").status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace nibble::store
