#pragma once
#include <optional>
#include <string>

namespace nibble::store {

// Names, sizes and times of all files below `directory` as one text, which changes when a file is added, removed or
// written. Much faster than reading the files. Returns "" if the directory is empty or does not exist, and nullopt if
// an entry cannot be read, for example because it was just removed.
std::optional<std::string> FilesKey(const std::string& directory);

}  // namespace nibble::store
