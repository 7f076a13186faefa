#include "server/store/files_key.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>
#include <vector>

#include "server/base/strings.h"

namespace nibble::store {

namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

// Adds a line for each entry of the directory `name` in the open directory `parent`, and of all directories below it.
// `path`: prefix of the names. False if an entry cannot be read. Looks up each entry in its open directory: a lookup by
// a long path takes longer than all other work, and a list of jobs needs thousands of lookups.
bool AddFiles(int parent, const char* name, const std::string& path, std::vector<std::string>& lines) {
  const int fd = ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT && path.empty();  // only the first directory may be missing (FilesKey)
  const std::unique_ptr<DIR, CloseDirectory> directory(::fdopendir(fd));
  if (directory == nullptr) {
    ::close(fd);
    return false;
  }
  errno = 0;
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string_view entry_name = entry->d_name;
    if (entry_name == "." || entry_name == "..") continue;
    struct stat info;
    if (::fstatat(fd, entry->d_name, &info, 0) != 0) return false;
    lines.push_back(
        base::StrCat(path, entry_name, " ", info.st_size, " ", info.st_mtim.tv_sec, " ", info.st_mtim.tv_nsec, "\n"));
    // A link to a directory is not followed: it may lead back here.
    const bool below = S_ISDIR(info.st_mode) && entry->d_type != DT_LNK;
    if (below && !AddFiles(fd, entry->d_name, base::StrCat(path, entry_name, "/"), lines)) return false;
    errno = 0;
  }
  return errno == 0;
}

}  // namespace

std::optional<std::string> FilesKey(const std::string& directory) {
  std::vector<std::string> lines;
  if (!AddFiles(AT_FDCWD, directory.c_str(), "", lines)) return std::nullopt;
  std::sort(lines.begin(), lines.end());
  std::string key;
  for (const std::string& line : lines) key += line;
  return key;
}

}  // namespace nibble::store
