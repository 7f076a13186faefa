#include "server/registry/uploaded_model.h"

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::registry {

using base::FieldError;
using base::StrCat;

absl::Status UploadedModel::BeginFile(const FileEntry& file) {
  if (finished()) return FieldError("file", "was sent after finish");
  NIBBLE_RETURN_IF_ERROR(EndFile());
  if (file.size_bytes < 0) return FieldError("file.size_bytes", StrCat("is ", file.size_bytes, ", wanted 0 or more"));
  if (!file.sha256.empty()) return FieldError("file.sha256", "must be empty: the digest is sent with finish");
  NIBBLE_RETURN_IF_ERROR(upload_->BeginFile(file.path));
  file_ = file;
  file_digest_ = base::Sha256();
  received_ = 0;
  return absl::OkStatus();
}

absl::Status UploadedModel::Append(std::string_view chunk, UploadTable::Stream& stream) {
  if (!file_.has_value()) return FieldError("chunk", "was sent before a file");
  const auto size = static_cast<std::int64_t>(chunk.size());
  if (size > file_->size_bytes - received_) {
    return FieldError("file.size_bytes",
                      StrCat(file_->path, " has more than the ", file_->size_bytes, " bytes announced"));
  }
  NIBBLE_RETURN_IF_ERROR(stream.Charge(size));
  received_ += size;
  NIBBLE_RETURN_IF_ERROR(upload_->Append(chunk));
  digest_.Update(chunk);
  file_digest_.Update(chunk);
  return absl::OkStatus();
}

absl::Status UploadedModel::Finish(const std::string& sha256) {
  if (!finished()) {
    NIBBLE_RETURN_IF_ERROR(EndFile());
    if (files_.empty()) return FieldError("file", "is missing, wanted at least one file");
    sha256_ = digest_.HexDigest();
  }
  if (sha256 == sha256_) return absl::OkStatus();
  return FieldError("finish.sha256", StrCat("is ", sha256.substr(0, 64), ", but the received bytes have ", sha256_));
}

absl::Status UploadedModel::EndFile() {
  if (!file_.has_value()) return absl::OkStatus();
  if (received_ != file_->size_bytes) {
    return FieldError("file.size_bytes",
                      StrCat(file_->path, " has ", received_, " bytes, but ", file_->size_bytes, " were announced"));
  }
  file_->sha256 = file_digest_.HexDigest();
  NIBBLE_RETURN_IF_ERROR(upload_->FinishFile(file_->sha256));
  files_.push_back(*std::move(file_));
  file_.reset();
  return absl::OkStatus();
}

}  // namespace nibble::registry
