#pragma once
#include <optional>
#include <string>

namespace nibble::store {

// Names, sizes and times of all files below `directory` as one text, which changes when a file is added, removed or
// written. Much faster than reading the files. Empty if there are none, also if `directory` does not exist; nullopt if
// they cannot be read, or change meanwhile.
std::optional<std::string> FilesKey(const std::string& directory);

}  // namespace nibble::store
