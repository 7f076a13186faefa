#include "server/store/files_key.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "server/base/strings.h"

namespace nibble::store {

std::optional<std::string> FilesKey(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> files;
  for (std::filesystem::recursive_directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    struct stat info;  // read once: std::filesystem would read it for each of its properties
    if (::stat(it->path().c_str(), &info) != 0) return std::nullopt;
    files.push_back(base::StrCat(it->path().c_str() + directory.size(), " ", info.st_size, " ", info.st_mtim.tv_sec, " ",
                                 info.st_mtim.tv_nsec, "\n"));
  }
  if (error && error != std::errc::no_such_file_or_directory) return std::nullopt;
  std::sort(files.begin(), files.end());
  std::string key;
  for (const std::string& file : files) key += file;
  return key;
}

}  // namespace nibble::store
