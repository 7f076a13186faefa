#include "client/files_to_send.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::client {
namespace {

constexpr char kIndex[] = "model.safetensors.index.json";
constexpr std::uint64_t kMaxIndexBytes = 64u << 20;

bool EndsWith(const std::string& text, std::string_view end) { return text.ends_with(end); }

// The shards that an index names. Empty for an unreadable index: then every shard is sent and the server reports the
// error.
std::set<std::string> ShardsOf(const std::string& index_path) {
  std::set<std::string> shards;
  const auto text = base::RealFileSystem().Read(index_path, kMaxIndexBytes);
  if (!text.ok()) return shards;
  const auto index = base::ParseJson(*text);
  if (!index.ok() || !index->is_object() || !index->contains("weight_map")) return shards;
  const base::Json& map = (*index)["weight_map"];
  if (!map.is_object()) return shards;
  for (const auto& item : map.items()) {
    if (item.value().is_string()) shards.insert(item.value().get<std::string>());
  }
  return shards;
}

bool IsText(const std::string& name) {
  return name == "config.json" || name == "generation_config.json" || name == "chat_template.jinja" ||
         name == "adapter_config.json" || name == kIndex || (name.starts_with("tokenizer") && EndsWith(name, ".json"));
}

absl::StatusOr<FileToSend> Entry(const std::filesystem::path& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) return base::FieldError("path", base::StrCat("cannot read ", path.string(), ": ", error.message()));
  if (size == 0) return base::FieldError("path", base::StrCat(path.string(), " is empty"));
  return FileToSend{path.string(), path.filename().string(), static_cast<std::int64_t>(size)};
}

}  // namespace

absl::StatusOr<std::vector<FileToSend>> FilesToImport(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return base::WithReason(absl::NotFoundError(base::StrCat("path: no file or directory ", path)), "FILE",
                            {{"field", "path"}});
  }
  std::vector<FileToSend> files;
  if (fs::is_regular_file(status)) {
    if (!EndsWith(path, ".gguf")) {
      return base::FieldError("path", base::StrCat("got the file ", path, ", wanted a .gguf file or a directory"));
    }
    NIBBLE_ASSIGN_OR_RETURN(FileToSend file, Entry(path));
    files.push_back(std::move(file));
    return files;
  }
  std::vector<std::string> names;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    // Follows links, because the files in the Hugging Face cache are symbolic links.
    if (fs::is_regular_file(it->path(), ignored)) names.push_back(it->path().filename().string());
  }
  if (error) return base::FieldError("path", base::StrCat("cannot list ", path, ": ", error.message()));
  std::sort(names.begin(), names.end());

  const auto has = [&](std::string_view name) { return std::binary_search(names.begin(), names.end(), name); };
  const bool directory_model = has("config.json") || has("adapter_config.json");
  const std::set<std::string> shards =
      has(kIndex) ? ShardsOf((fs::path(path) / kIndex).string()) : std::set<std::string>();
  for (const std::string& name : names) {
    const bool shard = EndsWith(name, ".safetensors") && (shards.empty() || shards.contains(name));
    const bool wanted = directory_model ? IsText(name) || shard : EndsWith(name, ".gguf");
    if (!wanted) continue;
    NIBBLE_ASSIGN_OR_RETURN(FileToSend file, Entry(fs::path(path) / name));
    files.push_back(std::move(file));
  }
  if (files.empty()) {
    return base::FieldError("path", base::StrCat(path, " contains no config.json, adapter_config.json or .gguf file"));
  }
  if (!directory_model && files.size() > 1) {
    return base::FieldError(
        "path", base::StrCat(path, " contains ", files.size(), " .gguf files: give the path of one of them"));
  }
  return files;
}

}  // namespace nibble::client
