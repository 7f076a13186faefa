#include "client/files_to_send.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/client/fake_server.h"

namespace nibble::client {
namespace {

using ::testing::ElementsAre;

std::string Folder(const std::vector<std::pair<std::string, std::string>>& files) {
  const std::string folder = TemporaryFolder();
  for (const auto& [name, content] : files) std::ofstream(folder + "/" + name) << content;
  return folder;
}

std::vector<std::string> Names(const std::string& path) {
  std::vector<std::string> names;
  const auto files = FilesToImport(path);
  EXPECT_TRUE(files.ok()) << files.status();
  if (files.ok()) {
    for (const auto& file : *files) names.push_back(file.name);
  }
  return names;
}

TEST(FilesToImportTest, SendsOnlyFilesThatAnImportNeeds) {
  const std::string folder = Folder({{"config.json", "{}"},
                                     {"model.safetensors", "w"},
                                     {"tokenizer.json", "t"},
                                     {"tokenizer_config.json", "t"},
                                     {"chat_template.jinja", "j"},
                                     {"generation_config.json", "{}"},
                                     {"pytorch_model.bin", "pickle"},
                                     {"README.md", "r"},
                                     {"id_rsa", "secret"},
                                     {"model.gguf", "g"},
                                     {".env", "secret"}});
  std::filesystem::create_directory(folder + "/x.safetensors");
  EXPECT_THAT(Names(folder), ElementsAre("chat_template.jinja", "config.json", "generation_config.json",
                                         "model.safetensors", "tokenizer.json", "tokenizer_config.json"));
}

TEST(FilesToImportTest, SendsOnlyTheShardsOfTheIndex) {
  const std::string folder =
      Folder({{"config.json", "{}"},
              {"a-1.safetensors", "w"},
              {"a-2.safetensors", "w"},
              {"consolidated.safetensors", "w"},
              {"model.safetensors.index.json", R"({"weight_map": {"x": "a-1.safetensors", "y": "a-2.safetensors"}})"}});
  EXPECT_THAT(Names(folder),
              ElementsAre("a-1.safetensors", "a-2.safetensors", "config.json", "model.safetensors.index.json"));
}

TEST(FilesToImportTest, SendsConfigAndWeightsOfAnAdapter) {
  EXPECT_THAT(Names(Folder({{"adapter_config.json", "{}"},
                            {"adapter_model.safetensors", "w"},
                            {"adapter_model.bin", "pickle"},
                            {"README.md", "r"},
                            {"training_args.bin", "pickle"}})),
              ElementsAre("adapter_config.json", "adapter_model.safetensors"));
}

TEST(FilesToImportTest, SendsABrokenIndexToTheServer) {
  const std::string folder =
      Folder({{"config.json", "{}"}, {"a.safetensors", "w"}, {"model.safetensors.index.json", "not JSON"}});
  EXPECT_THAT(Names(folder), ElementsAre("a.safetensors", "config.json", "model.safetensors.index.json"));
}

TEST(FilesToImportTest, FollowsSymbolicLinks) {
  const std::string blobs = Folder({{"blob", "weights"}});
  const std::string folder = Folder({{"config.json", "{}"}});
  std::filesystem::create_symlink(blobs + "/blob", folder + "/model.safetensors");
  EXPECT_THAT(Names(folder), ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ((*FilesToImport(folder))[1].size_bytes, 7);
}

TEST(FilesToImportTest, AcceptsAGgufFileOrAFolderWithOne) {
  EXPECT_THAT(Names(Folder({{"m.gguf", "g"}, {"notes.txt", "n"}})), ElementsAre("m.gguf"));
  EXPECT_THAT(Names(Folder({{"m.gguf", "g"}}) + "/m.gguf"), ElementsAre("m.gguf"));
}

TEST(FilesToImportTest, RejectsPathsWithoutAModel) {
  EXPECT_EQ(FilesToImport("/nowhere/at/all").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FilesToImport(Folder({})).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FilesToImport(Folder({{"a.gguf", "g"}, {"b.gguf", "g"}})).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FilesToImport(Folder({{"a.bin", "g"}}) + "/a.bin").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FilesToImport(Folder({{"a.gguf", ""}}) + "/a.gguf").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::client
