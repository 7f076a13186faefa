// F11 (docs/faults.md): the name of a model, a dataset or an output; the name of a checkpoint's directory; a page
// token. An accepted name is one plain part of a path, and none of the names that the server uses for unfinished work.
#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/strings.h"
#include "server/rpc/page.h"
#include "server/store/layout.h"
#include "tests/fuzz/fuzz.h"

using nibble::fuzz::Expect;
using nibble::fuzz::ExpectClean;
namespace base = nibble::base;
namespace rpc = nibble::rpc;
namespace store = nibble::store;

namespace {

bool IsPlain(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
}

void FuzzName(const std::string& name) {
  const absl::Status status = base::CheckName("name", name);
  if (!status.ok()) {
    Expect(absl::IsInvalidArgument(status) && base::Reason(status) == "FIELD_VIOLATION",
           "a bad name is the caller's fault");
    Expect(base::ToStd(status.message()).starts_with("name: "), "a refusal names the field");
    ExpectClean(status, name);
    return;
  }
  Expect(!name.empty() && name.size() <= 63 && std::all_of(name.begin(), name.end(), IsPlain),
         "a name has 1 to 63 plain characters");
  Expect(name.front() != '.' && name.front() != '-' && name.find("..") == std::string::npos,
         "a name is not a hidden file, a flag or a way up");
  const store::StatePaths layout("/state");
  for (const auto& [folder, path] :
       {std::pair(layout.models(), layout.model(name)), std::pair(layout.datasets(), layout.dataset(name))}) {
    const std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
    Expect(normal == path && normal.filename() == name && normal.parent_path() == folder,
           "a name is one part of a path");
  }
  const std::string temporary = base::TemporaryName(name);
  Expect(base::IsTemporaryName(temporary) && !base::CheckName("name", temporary).ok(), "temporary names are refused");
}

void FuzzCheckpoint(const std::string& name) {
  const auto step = store::CheckpointStep(name);
  if (!step.has_value()) return;
  Expect(*step >= 0 && store::CheckpointStep(store::CheckpointName(*step)) == step,
         "a step's name parses to that step");
}

void FuzzToken(const std::string& text) {
  if (!text.empty()) {
    const auto key = rpc::KeyOfToken(rpc::TokenAfter(text));
    Expect(key.ok() && *key == text, "a token gives back its key");
  }
  const auto key = rpc::KeyOfToken(text);
  ExpectClean(key.status(), text);
  if (key.ok()) Expect(text.empty() || rpc::TokenAfter(*key) == text, "a key has one token");
  const auto number = rpc::ParsePageToken(text);
  Expect(number.ok() ? *number >= 0 : base::Reason(number.status()) == "PAGE_TOKEN", "a number is not negative");
  ExpectClean(number.status(), text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(nibble::fuzz::Text(data, size));
  FuzzName(text);
  FuzzCheckpoint(text);
  FuzzToken(text);
  return 0;
}
