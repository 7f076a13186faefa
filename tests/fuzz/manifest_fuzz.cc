// F2 (docs/faults.md): the files that describe the files and tensors of a directory: manifest.json,
// model.safetensors.index.json, nibble.json and adapter_config.json.
#include <memory>
#include <string>
#include <utility>

#include "server/base/json.h"
#include "server/base/sha256.h"
#include "server/model/adapter.h"
#include "server/model/artifact.h"
#include "server/model/safetensors.h"
#include "server/store/published_directory.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/one_file_system.h"

using nibble::fuzz::Expect;
using nibble::fuzz::ExpectClean;
using nibble::fuzz::OneFileSystem;

namespace {

void FuzzManifest(const std::string& text) {
  OneFileSystem files("/model/manifest.json", text);
  const auto manifest = nibble::store::ReadManifest(files, "/model");
  ExpectClean(manifest.status(), text);
  if (!manifest.ok()) return;
  for (const auto& file : manifest->files) {
    const std::string& name = file.name;
    Expect(!name.empty() && name.front() != '/' && ("/" + name + "/").find("/../") == std::string::npos &&
               name.find('\0') == std::string::npos,
           "a name of a manifest stays in its directory");
    Expect(file.sha256.size() == 64, "a hash has 64 digits");
  }
  Expect(manifest->digest == nibble::base::Sha256Hex(text), "the digest is that of the text");
  const auto sizes = nibble::store::CheckSizes(files, "/model");
  Expect(!sizes.ok() || manifest->files.empty(), "missing files are detected");
  ExpectClean(sizes.status(), text);
}

// The index is the input; it may name the shards of the golden model.
void FuzzIndex(const std::string& text) {
  static const std::string directory = NIBBLE_SOURCE_DIR "/tests/golden/model/hf_sharded_f32";
  OneFileSystem files(directory + "/model.safetensors.index.json", text);
  const auto opened = nibble::model::OpenSafetensorsModel(files, directory);
  ExpectClean(opened.status(), text);
  if (!opened.ok()) return;
  Expect(!opened->tensors.empty() || opened->files.empty(), "a shard has tensors");
}

void FuzzDescriptions(const std::string& text) {
  const auto json = nibble::base::ParseJson(text);
  ExpectClean(json.status(), text);
  if (!json.ok()) return;
  const auto info = nibble::model::ParseArtifactInfo(*json);
  ExpectClean(info.status(), text);
  if (info.ok()) {
    const auto again = nibble::model::ParseArtifactInfo(nibble::model::ToJson(*info));
    Expect(again.ok() && nibble::model::ToJson(*again) == nibble::model::ToJson(*info),
           "nibble.json is unchanged after writing and reading");
  }
  ExpectClean(nibble::model::ParsePeftConfig(*json).status(), text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(nibble::fuzz::Text(data, size));
  FuzzManifest(text);
  FuzzIndex(text);
  FuzzDescriptions(text);
  return 0;
}
