#include "server/registry/export_reader.h"

#include <algorithm>

#include "server/base/files.h"
#include "server/base/strings.h"

namespace nibble::registry {

absl::StatusOr<ExportReader::Step> ExportReader::Next(std::string& bytes) {
  if (left_ == 0 && next_file_ == files_.size()) return Step::kEnd;
  if (left_ == 0) {
    const FileEntry& entry = files_[next_file_++];
    file_ = std::ifstream(base::JoinPath(exported_->directory, entry.path), std::ios::binary);
    if (!file_) return absl::DataLossError(base::StrCat(entry.path, " cannot be read"));
    left_ = entry.size_bytes;
    return Step::kFile;
  }
  bytes.resize(static_cast<std::size_t>(std::min(left_, kPieceBytes)));
  if (!file_.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    return absl::DataLossError(base::StrCat(file().path, " is shorter than expected"));
  }
  digest_.Update(bytes);
  left_ -= static_cast<std::int64_t>(bytes.size());
  return Step::kBytes;
}

}  // namespace nibble::registry
