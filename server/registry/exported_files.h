#pragma once
#include <string>
#include <vector>

#include "server/base/files.h"
#include "server/registry/file_entry.h"

namespace nibble::registry {

// The files of an export.
struct ExportedFiles {
  std::string artifact_id;
  std::string directory;
  std::vector<FileEntry> files;

  ExportedFiles() = default;
  ExportedFiles(const ExportedFiles&) = delete;
  ExportedFiles& operator=(const ExportedFiles&) = delete;
  // Removes the files. A leftover is removed at the next start, which empties uploads/.
  ~ExportedFiles() { base::RealFileSystem().RemoveAll(directory).IgnoreError(); }
};

}  // namespace nibble::registry
