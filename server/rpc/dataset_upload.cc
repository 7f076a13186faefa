// UploadDataset: header, chunks, finish. Implements MakeDatasetUpload of dataset_proto.h.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/ids.h"
#include "server/base/json.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"
#include "server/data/row_list_json.h"
#include "server/registry/import_root.h"
#include "server/rpc/dataset_proto.h"
#include "server/rpc/status.h"
#include "server/rpc/tracked_upload.h"

namespace nibble::rpc {

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
  base::Json meta = base::Json::object();
  meta["format"] = data::Name(data::RowFormat::kText);
  meta["rows"] = 1;
  meta["sent_bytes"] = text.size();
  meta["sent_sha256"] = sha256;
  return meta;
}

// JSON lines begin with a brace. Other content is accepted only if the header's format is text.
bool IsPlainText(std::string_view text, std::optional<data::RowFormat> format) {
  if (format != data::RowFormat::kText) return false;
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] != '{';
}

absl::StatusOr<base::Json> Validate(const std::string& path, std::optional<data::RowFormat> format,
                                    const std::string& sha256, std::size_t max_line_bytes) {
  const auto empty = base::WithReason(absl::InvalidArgumentError("the dataset has no rows"), "DATASET_EMPTY");
  NIBBLE_ASSIGN_OR_RETURN(const auto file, base::MappedFile::Open(path));
  if (file->text().find_first_not_of(" \t\r\n") == std::string_view::npos) return empty;
  if (IsPlainText(file->text(), format)) return WrapPlainText(path, file->text(), sha256);
  data::FileValidator validator(format, max_line_bytes);
  for (std::string_view rest = file->text(); !rest.empty(); rest.remove_prefix(std::min(rest.size(), kReadBytes))) {
    validator.Feed(rest.substr(0, kReadBytes));
  }
  NIBBLE_ASSIGN_OR_RETURN(const data::FileSummary summary, validator.Finish());
  base::Json meta = base::Json::object();
  meta["format"] = data::Name(summary.format);
  meta["rows"] = summary.num_rows;
  if (summary.empty_answers.count > 0) meta[kEmptyAnswers] = data::RowListJson(summary.empty_answers);
  return meta;
}

// The received part of a dataset.
class DatasetContent final : public registry::UploadContent {
 public:
  DatasetContent(std::int64_t max_bytes, std::optional<data::RowFormat> format)
      : max_bytes_(max_bytes), format_(format) {}

  std::int32_t num_files() const override { return 1; }
  std::optional<data::RowFormat> format() const { return format_; }
  bool of_server() const { return server_file_ != nullptr; }
  const registry::BeneathPath& server_file() const { return *server_file_; }
  const std::optional<v1::Dataset>& existing() const { return existing_; }

  // If the name is taken, the upload is only compared with the existing dataset: the same content gives the same answer
  // as the first upload.
  absl::Status Begin(store::DatasetStore& datasets, const std::string& name) {
    if (auto stored = datasets.Get(name); stored.ok()) {
      NIBBLE_ASSIGN_OR_RETURN(existing_, ToProto(*stored));
    } else {
      NIBBLE_ASSIGN_OR_RETURN(pending_, datasets.Begin(name));
    }
    return absl::OkStatus();
  }
  void TakeFrom(std::unique_ptr<registry::BeneathPath> server_file) { server_file_ = std::move(server_file); }
  absl::Status Append(std::string_view bytes, registry::UploadTable::Stream& stream) {
    const auto size = static_cast<std::int64_t>(bytes.size());
    // Check the limit first: it also applies to content that is only compared.
    if (size > max_bytes_ - received_) {
      return base::WithReason(absl::ResourceExhaustedError(StrCat("the dataset is larger than ", max_bytes_, " bytes")),
                              "UPLOAD_TOO_LARGE", {{"max_bytes", std::to_string(max_bytes_)}});
    }
    if (existing_.has_value() && size > existing_->bytes() - received_) return ContentDiffers();
    NIBBLE_RETURN_IF_ERROR(stream.Charge(size));
    received_ += size;
    digest_.Update(bytes);
    return pending_ == nullptr ? absl::OkStatus() : pending_->Append(bytes);
  }
  // AlreadyExists: the existing dataset of that name has different content.
  absl::Status ContentDiffers() const {
    return base::WithReason(absl::AlreadyExistsError(StrCat("a dataset named \"", existing_->name(),
                                                            "\" with different content already exists")),
                            "NAME_TAKEN", {{"kind", "dataset"}, {"name", existing_->name()}});
  }
  std::string Digest() { return digest_.HexDigest(); }  // call once, after the last Append
  store::DatasetStore::Pending& pending() { return *pending_; }

 private:
  const std::int64_t max_bytes_;
  const std::optional<data::RowFormat> format_;
  std::optional<v1::Dataset> existing_;
  std::unique_ptr<registry::BeneathPath> server_file_;  // instead of chunks
  std::unique_ptr<store::DatasetStore::Pending> pending_;
  std::int64_t received_ = 0;
  base::Sha256 digest_;
};

class DatasetUpload final : public TrackedUpload<v1::UploadDatasetRequest, v1::UploadDatasetHeader, DatasetContent> {
 public:
  DatasetUpload(const CallEnvironment& environment, store::DatasetStore& datasets, registry::UploadTable& uploads,
                const std::string& import_root, v1::Dataset* response)
      : TrackedUpload(environment, uploads, registry::UploadKind::kDataset),
        max_line_bytes_(environment.max_dataset_line_bytes),
        datasets_(datasets),
        import_root_(import_root),
        response_(response) {}

 private:
  absl::Status TakeHeader(const v1::UploadDatasetHeader& header) override {
    NIBBLE_RETURN_IF_ERROR(base::CheckName("header.name", header.name()));
    if (header.field_map_size() > 0) return Unimplemented("UploadDatasetHeader.field_map");
    if (header.has_size_bytes() && header.size_bytes() < 0) {
      return FieldError("header.size_bytes", StrCat("is ", header.size_bytes(), ", wanted 0 or more"));
    }
    const auto limit = static_cast<std::int64_t>(datasets_.limits().max_file_bytes);
    if (header.size_bytes() > limit) {
      return base::WithReason(
          absl::ResourceExhaustedError(StrCat("size_bytes: ", header.size_bytes(), ", the limit is ", limit)),
          "UPLOAD_TOO_LARGE", {{"max_bytes", std::to_string(limit)}});
    }
    if (header.has_server_path() && header.resume_offset() > 0) {
      return FieldError("header.resume_offset", "applies to chunks only, not to server_path");
    }
    return Open(header, header.size_bytes());
  }
  absl::StatusOr<std::unique_ptr<registry::UploadContent>> MakeContent(const v1::UploadDatasetHeader& header) override {
    NIBBLE_ASSIGN_OR_RETURN(const auto format, FromProto("header.format", header.format()));
    auto content =
        std::make_unique<DatasetContent>(static_cast<std::int64_t>(datasets_.limits().max_file_bytes), format);
    if (header.has_server_path()) {
      NIBBLE_ASSIGN_OR_RETURN(auto server_file, registry::BeneathPath::Open(import_root_, header.server_path()));
      content->TakeFrom(std::move(server_file));
    }
    NIBBLE_RETURN_IF_ERROR(content->Begin(datasets_, header.name()));
    return std::unique_ptr<registry::UploadContent>(std::move(content));
  }
  absl::StatusOr<bool> TakeNext(const v1::UploadDatasetRequest& message, DatasetContent& content) override {
    switch (message.message_case()) {
      case v1::UploadDatasetRequest::kChunk: return TakeChunk(message.chunk(), content);
      case v1::UploadDatasetRequest::kFinish: return TakeFinish(message.finish(), content);
      default: return FieldError("message", "is not set, wanted header, chunk or finish");
    }
  }
  absl::StatusOr<bool> TakeChunk(const std::string& chunk, DatasetContent& content) {
    if (content.of_server()) return FieldError("chunk", "was sent with header.server_path, wanted only one of them");
    NIBBLE_RETURN_IF_ERROR(CheckChunk(chunk));
    NIBBLE_RETURN_IF_ERROR(content.Append(chunk, stream()));
    return false;
  }
  // Copies the server's file, so that later changes of the file do not change the dataset.
  absl::Status AppendServerFile(DatasetContent& content) {
    const int fd = open(content.server_file().path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return FieldError("header.server_path", "cannot be read");
    std::string piece;
    ssize_t got = 0;
    absl::Status status;
    do {
      piece.resize(kReadBytes);
      got = read(fd, piece.data(), piece.size());
      if (got > 0) status = content.Append(std::string_view(piece).substr(0, static_cast<std::size_t>(got)), stream());
    } while (status.ok() && (got > 0 || (got < 0 && errno == EINTR)));
    close(fd);
    if (status.ok() && got < 0) return FieldError("header.server_path", "is not a readable file");
    return status;
  }
  absl::StatusOr<bool> TakeFinish(const v1::UploadFinish& finish, DatasetContent& content) {
    if (content.of_server()) NIBBLE_RETURN_IF_ERROR(AppendServerFile(content));
    const std::string digest = content.Digest();
    // A client need not know the digest of a server file.
    const bool unknown = content.of_server() && finish.sha256().empty();
    if (!unknown && finish.sha256() != digest) {
      return FieldError("finish.sha256",
                        StrCat("is ", finish.sha256().substr(0, 64), ", but the received bytes have ", digest));
    }
    NIBBLE_RETURN_IF_ERROR(stream().BeginFinish());
    if (content.existing().has_value()) {
      if (content.existing()->sha256() != digest) return content.ContentDiffers();
      *response_ = *content.existing();
      return true;
    }
    NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset stored,
                            content.pending().Finish(digest, [&](const std::string& path) {
                              return Validate(path, content.format(), digest, max_line_bytes_);
                            }));
    NIBBLE_ASSIGN_OR_RETURN(*response_, ToProto(stored));
    return true;
  }

  const std::size_t max_line_bytes_;
  store::DatasetStore& datasets_;
  const std::string& import_root_;
  v1::Dataset* const response_;
};

}  // namespace

std::unique_ptr<UploadSink<v1::UploadDatasetRequest>> MakeDatasetUpload(const CallEnvironment& environment,
                                                                        store::DatasetStore& datasets,
                                                                        registry::UploadTable& uploads,
                                                                        const std::string& import_root,
                                                                        v1::Dataset* response) {
  return std::make_unique<DatasetUpload>(environment, datasets, uploads, import_root, response);
}

}  // namespace nibble::rpc
