#include "server/registry/uploaded_dataset.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/ids.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"
#include "server/registry/dataset_meta.h"

namespace nibble::registry {

namespace {

using base::FieldError;
using base::StrCat;

constexpr std::uint64_t kMaxPlainTextBytes = 64u << 20;  // a plain text becomes one row
constexpr std::size_t kReadBytes = 1u << 20;

// Writes {"text": TEXT} as one line, piece by piece to save memory: a text of control characters is six times as long
// in JSON. `text` must be UTF-8.
absl::Status WriteTextRow(base::FileSystem& files, const std::string& path, std::string_view text) {
  NIBBLE_ASSIGN_OR_RETURN(const auto out, files.Create(path));
  NIBBLE_RETURN_IF_ERROR(out->Append("{\"text\":\""));
  for (std::size_t size; !text.empty(); text.remove_prefix(size)) {
    size = base::WholeCharacters(text, std::min(text.size(), kReadBytes));
    const std::string piece = base::Dump(base::Json(text.substr(0, size)));
    NIBBLE_RETURN_IF_ERROR(out->Append(std::string_view(piece).substr(1, piece.size() - 2)));  // without quotes
  }
  NIBBLE_RETURN_IF_ERROR(out->Append("\"}\n"));
  NIBBLE_RETURN_IF_ERROR(out->Sync());
  return out->Close();
}

// A text file becomes one row, {"text": ...}.
absl::StatusOr<base::Json> WrapPlainText(const std::string& path, std::string_view text, const std::string& sha256) {
  if (text.size() > kMaxPlainTextBytes) {
    return base::WithReason(
        absl::InvalidArgumentError(StrCat("the plain text has ", text.size(), " bytes, wanted at most ",
                                          kMaxPlainTextBytes, "; send it as JSON lines")),
        "DATASET_FORMAT");
  }
  if (!base::IsValidUtf8(text)) {
    return base::WithReason(absl::InvalidArgumentError("the text is not UTF-8"), "DATASET_FORMAT");
  }
  base::FileSystem& files = base::RealFileSystem();
  const std::string row = base::TemporaryName(path);
  if (absl::Status written = WriteTextRow(files, row, text); !written.ok()) {
    files.RemoveAll(row).IgnoreError();
    return written;
  }
  NIBBLE_RETURN_IF_ERROR(files.Rename(row, path));
  return PlainTextMeta(text.size(), sha256);
}

// JSON lines begin with a brace. Other content is accepted only if the caller says that the format is text.
bool IsPlainText(std::string_view text, std::optional<data::RowFormat> format) {
  if (format != data::RowFormat::kText) return false;
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] != '{';
}

// Checks the file at `path` and returns its meta.json. Replaces a plain text by one row. `sha256`: of the file.
absl::StatusOr<base::Json> Validate(const std::string& path, const NewDataset& dataset, const std::string& sha256) {
  const auto empty = base::WithReason(absl::InvalidArgumentError("the dataset has no rows"), "DATASET_EMPTY");
  NIBBLE_ASSIGN_OR_RETURN(const auto file, base::MappedFile::Open(path));
  if (file->text().find_first_not_of(" \t\r\n") == std::string_view::npos) return empty;
  if (IsPlainText(file->text(), dataset.format)) return WrapPlainText(path, file->text(), sha256);
  data::FileValidator validator(dataset.format, dataset.max_line_bytes);
  for (std::string_view rest = file->text(); !rest.empty(); rest.remove_prefix(std::min(rest.size(), kReadBytes))) {
    validator.Feed(rest.substr(0, kReadBytes));
  }
  NIBBLE_ASSIGN_OR_RETURN(const data::FileSummary summary, validator.Finish());
  return LinesMeta(summary);
}

}  // namespace

absl::StatusOr<std::unique_ptr<UploadedDataset>> UploadedDataset::Begin(store::DatasetStore& datasets,
                                                                        NewDataset dataset) {
  std::unique_ptr<UploadedDataset> made(new UploadedDataset(datasets, std::move(dataset)));
  const NewDataset& wanted = made->dataset_;
  if (wanted.server_path.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(made->server_file_, BeneathPath::Open(wanted.import_root, *wanted.server_path));
  }
  if (auto stored = datasets.Get(wanted.name); stored.ok()) {
    NIBBLE_ASSIGN_OR_RETURN(DatasetMeta meta, MetaOf(*stored));
    made->existing_ = Existing{*std::move(stored), meta.sent_bytes, std::move(meta.sent_sha256)};
  } else {
    NIBBLE_ASSIGN_OR_RETURN(made->pending_, datasets.Begin(wanted.name));
  }
  return made;
}

absl::Status UploadedDataset::Append(std::string_view bytes, UploadTable::Stream& stream) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  // Check the limit first: it also applies to content that is only compared.
  if (size > max_bytes_ - received_) {
    return base::WithReason(absl::ResourceExhaustedError(StrCat("the dataset is larger than ", max_bytes_, " bytes")),
                            "UPLOAD_TOO_LARGE", {{"max_bytes", std::to_string(max_bytes_)}});
  }
  if (existing_.has_value() && size > existing_->sent_bytes - received_) return Differs();
  NIBBLE_RETURN_IF_ERROR(stream.Charge(size));
  received_ += size;
  digest_.Update(bytes);
  return pending_ == nullptr ? absl::OkStatus() : pending_->Append(bytes);
}

// The copy keeps the dataset unchanged when the file changes later.
absl::Status UploadedDataset::AppendServerFile(UploadTable::Stream& stream) {
  const int fd = open(server_file_->path().c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FieldError("header.server_path", "cannot be read");
  std::string piece;
  ssize_t got = 0;
  absl::Status status;
  do {
    piece.resize(kReadBytes);
    got = read(fd, piece.data(), piece.size());
    if (got > 0) status = Append(std::string_view(piece).substr(0, static_cast<std::size_t>(got)), stream);
  } while (status.ok() && (got > 0 || (got < 0 && errno == EINTR)));
  close(fd);
  if (status.ok() && got < 0) return FieldError("header.server_path", "is not a readable file");
  return status;
}

absl::Status UploadedDataset::Differs() const {
  return base::WithReason(
      absl::AlreadyExistsError(StrCat("a dataset named \"", dataset_.name, "\" with different content already exists")),
      "NAME_TAKEN", {{"kind", "dataset"}, {"name", dataset_.name}});
}

absl::StatusOr<store::StoredDataset> UploadedDataset::Finish(const std::string& sha256, UploadTable::Stream& stream) {
  if (from_server()) NIBBLE_RETURN_IF_ERROR(AppendServerFile(stream));
  const std::string digest = digest_.HexDigest();
  // A client need not know the digest of a server file.
  const bool unknown = from_server() && sha256.empty();
  if (!unknown && sha256 != digest) {
    return FieldError("finish.sha256", StrCat("is ", sha256.substr(0, 64), ", but the received bytes have ", digest));
  }
  NIBBLE_RETURN_IF_ERROR(stream.BeginFinish());
  if (existing_.has_value()) {
    if (existing_->sent_sha256 != digest) return Differs();
    return existing_->stored;
  }
  return pending_->Finish(digest, [&](const std::string& path) -> absl::StatusOr<base::Json> {
    NIBBLE_ASSIGN_OR_RETURN(base::Json meta, Validate(path, dataset_, digest));
    SetFileName(meta, dataset_.file_name);
    return meta;
  });
}

}  // namespace nibble::registry
