// Loads exports with the programs that they are for.
#include <cstdlib>

#include "tests/server/convert/export_fixture.h"

namespace nibble::convert {
namespace {

// Quotes a path as one word of a shell command.
std::string Quoted(const std::string& path) { return "'" + path + "'"; }

TEST_F(ExportTest, RealTransformersAndPeftLoadTheExports) {
  const std::string python = NIBBLE_PYTHON;
  const std::string probe =
      Quoted(python) +
      " -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec(\"peft\") and u.find_spec(\"transformers\")))'";
  if (python.empty() || std::system(probe.c_str()) != 0) GTEST_SKIP() << "NIBBLE_PYTHON has no peft and transformers";
  ASSERT_TRUE(ExportHf(files_, *f32_, directory_.Path("hf")).ok());
  ASSERT_TRUE(ExportPeft(files_, *lora_, directory_.Path("peft")).ok());
  ASSERT_TRUE(
      ExportHf(files_, *f32_, directory_.Path("shards"), HfBitNetClass::kBitLinear, /*max_shard_bytes=*/12'000).ok());
  for (const char* hf : {"hf", "shards"}) {
    const std::string command = Quoted(python) + " " +
                                Quoted(NIBBLE_SOURCE_DIR "/tests/server/convert/load_export.py") + " " +
                                Quoted(directory_.Path(hf)) + " " + Quoted(directory_.Path("peft"));
    EXPECT_EQ(std::system(command.c_str()), 0) << hf;
  }
}

}  // namespace
}  // namespace nibble::convert
