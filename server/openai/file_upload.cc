#include "server/openai/file_upload.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/mutex.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/openai/api_error.h"
#include "server/openai/files.h"
#include "server/openai/multipart.h"
#include "server/openai/unary_exchange.h"

namespace nibble::openai {

namespace {

using base::FieldError;
using base::StrCat;

// The server limits the number of chunks below half a MiB, and a chunk to one MiB. A piece of the body is smaller than
// the difference.
constexpr std::size_t kChunkBytes = 768 << 10;
constexpr std::size_t kMaxFieldBytes = 256;  // of a field other than the file

// The fields of the form. Keeps the bytes of the file until TakeChunk().
class FileForm final : public FormSink {
 public:
  absl::Status BeginPart(const FormPart& part) override {
    part_ = part.name;
    value_.clear();
    if (part_ != "file") return part_ == "purpose" && !purpose_.has_value() ? absl::OkStatus() : RefusePart();
    if (has_file()) return RefusePart();
    file_name_ = part.file_name.value_or("");
    return absl::OkStatus();
  }
  absl::Status PartBytes(std::string_view bytes) override {
    if (part_ == "file") {
      chunk_ += bytes;
      digest_.Update(bytes);
      return absl::OkStatus();
    }
    if (value_.size() + bytes.size() > kMaxFieldBytes)
      return FieldError(part_, StrCat("has more than ", kMaxFieldBytes, " bytes"));
    value_ += bytes;
    return absl::OkStatus();
  }
  absl::Status EndPart() override {
    if (part_ == "file") return absl::OkStatus();
    purpose_ = value_;
    if (*purpose_ == kFilePurpose) return absl::OkStatus();
    return FieldError("purpose", StrCat("is \"", *purpose_, "\", wanted \"", kFilePurpose, "\""));
  }

  // Errors: InvalidArgument: a field is missing.
  absl::Status Finish() const {
    if (!has_file()) return FieldError("file", "is not set, wanted a file");
    if (!purpose_.has_value()) return FieldError("purpose", StrCat("is not set, wanted \"", kFilePurpose, "\""));
    return absl::OkStatus();
  }
  bool has_file() const { return file_name_.has_value(); }
  const std::string& file_name() const { return *file_name_; }
  const std::string& chunk() const { return chunk_; }
  std::string TakeChunk() { return std::exchange(chunk_, {}); }
  std::string Digest() { return digest_.HexDigest(); }

 private:
  absl::Status RefusePart() const {
    const bool known = part_ == "file" || part_ == "purpose";
    if (known) return FieldError(part_, "is set twice, wanted one value");
    const std::string_view field = std::string_view(part_).substr(0, part_.find('['));  // "expires_after[anchor]"
    return FieldError(field, field == "expires_after" ? "is not supported: files never expire"
                                                      : "is not a field of this request, wanted file and purpose");
  }

  std::string part_;   // name of the current part
  std::string value_;  // of the current part, unless it is the file
  std::optional<std::string> purpose_;
  std::optional<std::string> file_name_;
  std::string chunk_;
  base::Sha256 digest_;
};

// A repeated request with an idempotency key gets the same file.
std::string NewFileId(const http::RequestHead& head) {
  const std::string key = head.Field("idempotency-key");
  if (key.empty()) return base::NewId("file");
  constexpr std::size_t kDigits = 24;
  return StrCat("file-", base::Sha256Hex(StrCat(head.fairness_key, "\n", key)).substr(0, kDigits));
}

// Asks for a piece of the body, sends the file's part of it, and so on: at most one chunk is in memory besides the one
// that gRPC holds. Lives until the call has ended.
class FileUpload final : public grpc::ClientWriteReactor<v1::UploadDatasetRequest>,
                         public std::enable_shared_from_this<FileUpload> {
 public:
  explicit FileUpload(std::shared_ptr<Incoming> incoming) : incoming_(std::move(incoming)) {}

  void Begin(const Stubs& stubs) {
    const http::RequestHead& head = exchange().head();
    auto parser = FormParser::Make(head.Field("content-type"), {}, form_);
    if (!parser.ok()) return exchange().Answer(ToReply(FromStatus(parser.status())));
    parser_ = *std::move(parser);
    self_ = shared_from_this();
    incoming_->identity.AddTo(context_);
    stubs.datasets->async()->UploadDataset(&context_, &dataset_, this);
    AddHold();  // until no write follows
    StartCall();
    exchange().Watch([] {},
                     [weak = weak_from_this()] {
                       if (const auto self = weak.lock()) self->ClientGone();
                     });
    AskForPiece();
  }

 private:
  // Who acts next: the client's connection, or this object, which a write of gRPC may continue. kOver: no write
  // follows.
  enum class Turn { kClient, kUpload, kOver };

  http::Exchange& exchange() const { return *incoming_->exchange; }

  void AskForPiece() {
    bool gone;
    {
      base::MutexLock lock(mutex_);
      gone = gone_;
      turn_ = gone ? Turn::kOver : Turn::kClient;
    }
    if (gone) return RemoveHold();
    exchange().ReadBody(
        [self = shared_from_this()](const std::string& bytes, bool last) { self->TakePiece(bytes, last); });
  }

  void TakePiece(std::string_view bytes, bool last) {
    {
      base::MutexLock lock(mutex_);
      if (turn_ != Turn::kClient) return;
      turn_ = Turn::kUpload;
    }
    last_ = last;
    absl::Status status = parser_->Feed(bytes);
    if (status.ok() && last) status = parser_->Finish();
    if (status.ok() && last) status = form_.Finish();
    if (!status.ok()) return Refuse(status);
    Continue();
  }

  // Sends what there is, then asks for the next piece.
  void Continue() {
    message_.Clear();
    if (form_.has_file() && !std::exchange(sent_header_, true)) {
      message_.mutable_header()->set_name(NewFileId(exchange().head()));
      message_.mutable_header()->set_file_name(form_.file_name());
    } else if (form_.chunk().size() >= kChunkBytes || (last_ && !form_.chunk().empty())) {
      message_.set_chunk(form_.TakeChunk());
    } else if (last_) {
      message_.mutable_finish()->set_sha256(form_.Digest());
      finishing_ = true;
    } else {
      return AskForPiece();
    }
    StartWrite(&message_);
  }

  void OnWriteDone(bool ok) override {
    if (ok && !finishing_) return Continue();
    {
      base::MutexLock lock(mutex_);
      turn_ = Turn::kOver;
    }
    RemoveHold();  // the status follows
  }

  void Refuse(const absl::Status& status) {
    {
      base::MutexLock lock(mutex_);
      turn_ = Turn::kOver;
    }
    exchange().Answer(ToReply(FromStatus(status)));  // later answers have no effect
    context_.TryCancel();
    RemoveHold();
  }

  void ClientGone() {
    bool over;
    {
      base::MutexLock lock(mutex_);
      gone_ = true;
      over = turn_ == Turn::kClient;
      if (over) turn_ = Turn::kOver;
    }
    context_.TryCancel();
    if (over) RemoveHold();
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<FileUpload> last = std::move(self_);  // may destroy this object
    if (status.ok()) return exchange().Answer(JsonReply(base::Dump(FileJson(dataset_))));
    // Errors of rows are about "line 3" and so on.
    ApiError error = FromStatus(
        status, [](std::string_view field) { return std::string(field.starts_with("line") ? field : "file"); });
    if (!error.param.empty()) error.param = "file";
    exchange().Answer(ToReply(error));
  }

  const std::shared_ptr<Incoming> incoming_;
  grpc::ClientContext context_;
  v1::UploadDatasetRequest message_;
  v1::Dataset dataset_;
  std::shared_ptr<FileUpload> self_;  // until OnDone

  // Used by whoever has the turn.
  FileForm form_;
  std::optional<FormParser> parser_;
  bool sent_header_ = false;
  bool last_ = false;  // the body has been read
  bool finishing_ = false;

  base::Mutex mutex_;
  Turn turn_ ABSL_GUARDED_BY(mutex_) = Turn::kUpload;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

void UploadFile(std::shared_ptr<Incoming> incoming, const Stubs& stubs) {
  std::make_shared<FileUpload>(std::move(incoming))->Begin(stubs);
}

}  // namespace nibble::openai
