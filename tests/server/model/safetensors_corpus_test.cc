// docs/faults.md, F1: compares our reader with the `safetensors` crate on the fuzz corpus.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "server/base/json.h"
#include "server/base/sha256.h"
#include "server/model/safetensors.h"

namespace nibble::model {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

base::Json Describe(const SafetensorsTensor& tensor) {
  base::Json json = base::Json::object();
  json["dtype"] = tensor.dtype_name;
  json["shape"] = tensor.shape;
  json["sha256"] = base::Sha256Hex({reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()});
  return json;
}

TEST(SafetensorsCorpusTest, F1AgreesWithTheCrateOnEveryFile) {
  // Files that we refuse and the crate accepts; safetensors.h gives the reasons.
  const std::set<std::string> stricter = {"duplicate-tensor", "dimension-over-int64", "rank-9", "tensor-is-array",
                                          "dtype-is-object"};
  const auto verdicts = base::ParseJson(ReadAll(NIBBLE_SOURCE_DIR "/tests/golden/model/safetensors_corpus.json"));
  ASSERT_TRUE(verdicts.ok()) << verdicts.status();
  for (const auto& file : std::filesystem::directory_iterator(NIBBLE_SOURCE_DIR "/tests/fuzz/corpus/safetensors")) {
    EXPECT_TRUE(verdicts->contains(file.path().filename().string()))
        << file.path() << ": run make_safetensors_golden.py";
  }
  ASSERT_GE(verdicts->size(), 40u);
  for (const auto& [name, verdict] : verdicts->items()) {
    SCOPED_TRACE(name);
    const std::string bytes = ReadAll(NIBBLE_SOURCE_DIR "/tests/fuzz/corpus/safetensors/" + name);
    const auto header = ParseSafetensors({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, name);
    EXPECT_EQ(header.ok(), !verdict.is_null() && !stricter.contains(name)) << header.status();
    if (!header.ok() || verdict.is_null()) continue;
    EXPECT_EQ(header->tensors.size(), verdict.size());
    for (const SafetensorsTensor& tensor : header->tensors) {
      EXPECT_EQ(Describe(tensor), verdict.value(tensor.name, base::Json())) << tensor.name;
    }
  }
}

}  // namespace
}  // namespace nibble::model
