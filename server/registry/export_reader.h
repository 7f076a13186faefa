#pragma once
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/sha256.h"
#include "server/registry/exported_files.h"
#include "server/registry/file_entry.h"

namespace nibble::registry {

// Reads files of an export in pieces, one file after the other. One thread.
class ExportReader {
 public:
  enum class Step { kFile, kBytes, kEnd };
  static constexpr std::int64_t kPieceBytes = 256 << 10;

  // `files`: some of exported->files, at least one.
  ExportReader(std::shared_ptr<const ExportedFiles> exported, std::vector<FileEntry> files)
      : exported_(std::move(exported)), files_(std::move(files)) {}

  // kFile: file() begins. kBytes: `bytes` receives the next bytes of the file, at most kPieceBytes. kEnd: all files
  // were read. Errors: DataLoss: a file cannot be read, or is shorter than its entry says.
  absl::StatusOr<Step> Next(std::string& bytes);
  const FileEntry& file() const { return files_[next_file_ - 1]; }
  // SHA-256 of the bytes of all files. Call it once, after kEnd.
  std::string Digest() { return digest_.HexDigest(); }

 private:
  const std::shared_ptr<const ExportedFiles> exported_;  // keeps the files
  const std::vector<FileEntry> files_;
  std::size_t next_file_ = 0;
  std::ifstream file_;
  std::int64_t left_ = 0;  // bytes of the file
  base::Sha256 digest_;
};

}  // namespace nibble::registry
