#include "server/model/forget_pages.h"

#include <gtest/gtest.h>

#include <numeric>

#include "server/base/files.h"
#include "server/base/process_memory.h"
#include "tests/server/model/files.h"

namespace nibble::model {
namespace {

TEST(ForgetPagesTest, ForgottenPagesLeaveTheProcessAndReadBackUnchanged) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  TempDirectory directory;
  WriteBytes(directory.Path("weights"), std::string(kBytes, 'w'));
  const auto file = base::MappedFile::Open(directory.Path("weights"));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto sum = [&] {
    std::uint64_t total = 0;
    for (const std::byte value : (*file)->bytes()) total += static_cast<std::uint64_t>(value);
    return total;
  };
  const std::uint64_t before = base::ResidentBytes();
  EXPECT_EQ(sum(), kBytes * 'w');
  const std::uint64_t read = base::ResidentBytes();
  EXPECT_GT(read, before + kBytes / 2);
  ForgetPages((*file)->bytes().subspan(100));  // does not begin at a page
  EXPECT_LT(base::ResidentBytes(), read - kBytes / 2);
  EXPECT_EQ(sum(), kBytes * 'w');
}

}  // namespace
}  // namespace nibble::model
