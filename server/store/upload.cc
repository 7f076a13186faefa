#include "server/store/upload.h"

#include "absl/strings/ascii.h"
#include "server/base/error.h"
#include "server/base/free_space.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::store {

using base::StrCat;

namespace {

absl::Status TooLarge(std::string_view what, std::uint64_t max) {
  return base::WithReason(absl::ResourceExhaustedError(StrCat(what, " is larger than ", max, " bytes")),
                          "UPLOAD_TOO_LARGE", {{"max_bytes", std::to_string(max)}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Upload>> Upload::Begin(base::FileSystem& files, const StatePaths& paths,
                                                      UploadLimits limits) {
  const std::string directory = base::JoinPath(paths.uploads(), base::NewId("upload"));
  NIBBLE_RETURN_IF_ERROR(files.CreateDirectories(directory));
  return std::unique_ptr<Upload>(new Upload(files, limits, directory));
}

Upload::~Upload() {
  file_.reset();
  (void)files_.RemoveAll(directory_);  // Best effort: the next start empties uploads/.
}

absl::Status Upload::BeginFile(std::string_view name) {
  if (file_ != nullptr) return absl::FailedPreconditionError(StrCat("the file ", file_name_, " is not finished"));
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", name));
  if (num_files_ >= limits_.max_files) {
    return base::WithReason(
        absl::ResourceExhaustedError(StrCat("more than ", limits_.max_files, " files in one upload")),
        "UPLOAD_TOO_LARGE");
  }
  const std::string path = base::JoinPath(directory_, name);
  if (files_.Exists(path)) return base::FieldError("name", StrCat("the file ", name, " was sent twice"));
  NIBBLE_ASSIGN_OR_RETURN(file_, files_.Create(path));
  file_name_ = name;
  sha256_ = base::Sha256();
  file_bytes_ = 0;
  ++num_files_;
  return absl::OkStatus();
}

absl::Status Upload::Append(std::string_view chunk) {
  if (file_ == nullptr) return absl::FailedPreconditionError("no file is open");
  // The subtractions cannot wrap: both totals are at most their limits.
  if (chunk.size() > limits_.max_file_bytes - file_bytes_) return TooLarge(file_name_, limits_.max_file_bytes);
  if (chunk.size() > limits_.max_total_bytes - total_bytes_) return TooLarge("the upload", limits_.max_total_bytes);
  // Checked for every chunk, because other uploads write too. A check takes a microsecond.
  NIBBLE_RETURN_IF_ERROR(base::CheckSpace(files_, directory_, limits_.min_free_bytes + chunk.size()));
  NIBBLE_RETURN_IF_ERROR(file_->Append(chunk));
  sha256_.Update(chunk);
  file_bytes_ += chunk.size();
  total_bytes_ += chunk.size();
  return absl::OkStatus();
}

absl::Status Upload::FinishFile(std::string_view sha256) {
  if (file_ == nullptr) return absl::FailedPreconditionError("no file is open");
  NIBBLE_RETURN_IF_ERROR(file_->Close());  // Not synced: publishing a file syncs it.
  file_.reset();
  const std::string got = sha256_.HexDigest();
  if (absl::AsciiStrToLower(base::ToAbsl(sha256)) != got) {
    return base::WithReason(absl::InvalidArgumentError(
                                StrCat("sha256: the received ", file_name_, " has SHA-256 ", got, ", wanted ", sha256)),
                            "CHECKSUM_MISMATCH", {{"field", "sha256"}});
  }
  return absl::OkStatus();
}

}  // namespace nibble::store
