#include "tests/server/text/golden.h"

#include <fstream>
#include <iterator>

#include "gtest/gtest.h"

namespace nibble::text {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

base::Json ReadGolden(std::string_view file) {
  const std::string path = std::string(NIBBLE_SOURCE_DIR "/tests/golden/text/");
  auto json = base::ParseJson(ReadFile(path + std::string(file)));
  EXPECT_TRUE(json.ok()) << file << ": " << json.status();
  return json.ok() ? *std::move(json) : base::Json();
}

GgufTokenizer TinyGguf(const std::string& vocabulary, const std::string& pre) {
  const base::Json tiny = ReadGolden("tiny_vocabularies.json").at(vocabulary);
  GgufTokenizer gguf;
  gguf.model = tiny.at("model");
  gguf.pre = pre;
  gguf.tokens = tiny.at("tokens").get<std::vector<std::string>>();
  gguf.token_types = tiny.at("token_types").get<std::vector<std::int32_t>>();
  if (tiny.contains("merges")) {
    gguf.merges = tiny.at("merges").get<std::vector<std::string>>();
  }
  if (tiny.contains("scores")) {
    gguf.scores = tiny.at("scores").get<std::vector<float>>();
  }
  gguf.bos_id = tiny.at("bos_id").get<std::int64_t>();
  gguf.eos_id = tiny.at("eos_id").get<std::int64_t>();
  gguf.unk_id = tiny.at("unk_id").get<std::int64_t>();
  return gguf;
}

void ApplyFlags(const base::Json& flags, GgufTokenizer* gguf) {
  const auto read = [&](const char* key) -> std::optional<bool> {
    if (!flags.contains(key)) return std::nullopt;
    return flags.at(key).get<bool>();
  };
  gguf->add_bos = read("add_bos_token");
  gguf->add_eos = read("add_eos_token");
  gguf->add_space_prefix = read("add_space_prefix");
}

std::unique_ptr<Tokenizer> Load(const GgufTokenizer& gguf) {
  const auto files = TokenizerFilesFromGguf(gguf);
  EXPECT_TRUE(files.ok()) << files.status();
  if (!files.ok()) return nullptr;
  auto tokenizer = Tokenizer::FromJson(files->tokenizer_json);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

}  // namespace nibble::text
