// The libraries to which the program nibbled is linked, read from its dynamic section: a serving image must not need
// libtorch.
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace nibble {
namespace {

template <typename T>
T At(const std::string& file, std::uint64_t offset) {
  T value{};
  EXPECT_LE(offset + sizeof(T), file.size());
  if (offset + sizeof(T) <= file.size()) std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

std::set<std::string> Needed(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string file((std::istreambuf_iterator<char>(stream)), {});
  const auto header = At<Elf64_Ehdr>(file, 0);
  EXPECT_EQ(std::memcmp(header.e_ident, ELFMAG, SELFMAG), 0) << path;
  std::set<std::string> names;
  for (int i = 0; i < header.e_shnum; ++i) {
    const auto section = At<Elf64_Shdr>(file, header.e_shoff + static_cast<std::uint64_t>(i) * header.e_shentsize);
    if (section.sh_type != SHT_DYNAMIC) continue;
    const auto strings =
        At<Elf64_Shdr>(file, header.e_shoff + section.sh_link * static_cast<std::uint64_t>(header.e_shentsize));
    for (std::uint64_t at = 0; at < section.sh_size; at += sizeof(Elf64_Dyn)) {
      const auto entry = At<Elf64_Dyn>(file, section.sh_offset + at);
      if (entry.d_tag == DT_NEEDED) names.insert(file.data() + strings.sh_offset + entry.d_un.d_val);
    }
  }
  return names;
}

bool HasLibrary(const std::set<std::string>& names, const std::string& prefix) {
  for (const std::string& name : names) {
    if (name.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

TEST(LinkTableTest, NibbledLinksTheLibrariesOfTheServerButNotTorch) {
  const auto names = Needed(NIBBLED_PATH);
  for (const char* wanted : {"libgrpc++.so", "libprotobuf.so", "libabsl_", "libprometheus-cpp-core.so", "libdnnl.so"}) {
    EXPECT_TRUE(HasLibrary(names, wanted)) << wanted << " is not among " << testing::PrintToString(names);
  }
  for (const char* unwanted : {"libtorch", "libc10", "libprometheus-cpp-pull"}) {
    EXPECT_FALSE(HasLibrary(names, unwanted)) << unwanted;
  }
}

}  // namespace
}  // namespace nibble
