// Common part of the upload sinks of datasets and models: their entry in the table of uploads.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/registry/upload_table.h"
#include "server/rpc/upload_reactor.h"

namespace nibble::rpc {

// Header: UploadDatasetHeader or UploadModelHeader. Content: a derived class creates it for the header, then fills it.
template <typename Request, typename Header, typename Content>
class TrackedUpload : public UploadSink<Request> {
 public:
  TrackedUpload(const CallEnvironment& environment, registry::UploadTable& uploads, registry::UploadKind kind)
      : max_chunk_bytes_(environment.max_chunk_bytes), uploads_(uploads), kind_(kind) {}

  void Attach(const Call& call, typename UploadSink<Request>::End end) final {
    owner_ = auth::OwnerOf(call.principal());
    end_ = std::move(end);
  }
  void Lost() final {
    if (stream_ != nullptr) stream_->Keep();
  }
  absl::StatusOr<bool> Take(const Request& message) final {
    if (message.has_header()) {
      if (stream_ != nullptr) return base::FieldError("header", "was sent twice");
      NIBBLE_RETURN_IF_ERROR(TakeHeader(message.header()));
      return false;
    }
    if (message.message_case() == Request::MESSAGE_NOT_SET)
      return base::FieldError("message", "is not set, wanted one of its fields");
    if (stream_ == nullptr) return base::FieldError("header", "is missing, must be the first message");
    base::MutexLock lock(stream_->using_content());
    NIBBLE_RETURN_IF_ERROR(stream_->Check());
    return TakeNext(message, static_cast<Content&>(*stream_->content()));
  }

 protected:
  // Begins or resumes the upload. TakeHeader of the derived class calls it once, after checking the rest of the header.
  absl::Status Open(const Header& header, std::int64_t size_bytes) {
    const registry::UploadTable::Start start{
        .owner = owner_, .id = header.upload_id(), .kind = kind_, .name = header.name(), .size_bytes = size_bytes};
    if (header.resume_offset() < 0) {
      return base::FieldError("header.resume_offset",
                              base::StrCat("is ", header.resume_offset(), ", wanted 0 or more"));
    }
    if (header.resume_offset() > 0) {
      if (start.id.empty()) return base::FieldError("header.upload_id", "is not set, wanted the upload to resume");
      NIBBLE_ASSIGN_OR_RETURN(stream_, uploads_.Resume(start, header.resume_offset(), end_));
      return absl::OkStatus();
    }
    NIBBLE_ASSIGN_OR_RETURN(auto stream, uploads_.Begin(start, end_));
    {
      // Set stream_ only after this, because Lost() must not keep an upload without content.
      base::MutexLock lock(stream->using_content());
      NIBBLE_RETURN_IF_ERROR(stream->Check());
      NIBBLE_ASSIGN_OR_RETURN(stream->content(), MakeContent(header));
    }
    stream_ = std::move(stream);
    return absl::OkStatus();
  }
  absl::Status CheckChunk(const std::string& chunk) const {
    if (!chunk.empty() && chunk.size() <= max_chunk_bytes_) return absl::OkStatus();
    return base::FieldError("chunk", base::StrCat("has ", chunk.size(), " bytes, wanted 1 to ", max_chunk_bytes_));
  }
  registry::UploadTable::Stream& stream() { return *stream_; }

 private:
  virtual absl::Status TakeHeader(const Header& header) = 0;
  virtual absl::StatusOr<std::unique_ptr<registry::UploadContent>> MakeContent(const Header& header) = 0;
  // True: `message` was the last one.
  virtual absl::StatusOr<bool> TakeNext(const Request& message, Content& content) = 0;

  const std::size_t max_chunk_bytes_;
  registry::UploadTable& uploads_;
  const registry::UploadKind kind_;
  auth::RequestOwner owner_;
  typename UploadSink<Request>::End end_;
  std::unique_ptr<registry::UploadTable::Stream> stream_;
};

}  // namespace nibble::rpc
