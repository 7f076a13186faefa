// A watch of a job's log that survives lost connections and server restarts. Its only state is the next byte to read.
#include <cstdint>
#include <functional>
#include <string>

#include "client/client.h"
#include "client/lost_connection.h"
#include "client/stubs.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::client {
namespace {

using OnChunk = std::function<absl::Status(const v1::JobLogChunk&)>;

// The next byte of the log, which is also where the next connection begins.
class Place {
 public:
  explicit Place(const v1::WatchJobLogsRequest& request) : request_(request) {}

  const v1::WatchJobLogsRequest& request() const { return request_; }

  absl::Status Take(const v1::JobLogChunk& chunk, const OnChunk& on_chunk) {
    const bool same = chunk.attempt() == attempt_;
    if (chunk.attempt() < attempt_ || (same && chunk.offset() != request_.offset())) {
      return absl::DataLossError(base::StrCat("malformed response: byte ", chunk.offset(), " of attempt ",
                                              chunk.attempt(), " after byte ", request_.offset(), " of attempt ",
                                              attempt_));
    }
    attempt_ = chunk.attempt();
    if (attempt_ > 0) {
      request_.set_attempt(attempt_);
      request_.set_offset(chunk.offset() + static_cast<std::int64_t>(chunk.data().size()));
      request_.clear_tail_lines();  // the offset replaces them, and the server refuses both
    }
    return chunk.data().empty() ? absl::OkStatus() : on_chunk(chunk);
  }

 private:
  v1::WatchJobLogsRequest request_;
  std::int32_t attempt_ = 0;  // 0: the server has not named one
};

}  // namespace

absl::Status Client::WatchJobLogs(const v1::WatchJobLogsRequest& request, const OnChunk& on_chunk) {
  Place place(request);
  Reconnect reconnect(options_);
  bool reached = false;
  while (true) {
    grpc::ClientContext context;
    SetDeadline(context, options_.long_deadline);
    const auto reader = stubs_->jobs->WatchJobLogs(&context, place.request());
    v1::JobLogChunk chunk;
    absl::Status ours;
    while (ours.ok() && reader->Read(&chunk)) {
      reached = true;
      reconnect.Works();
      ours = place.Take(chunk, on_chunk);
    }
    if (!ours.ok()) context.TryCancel();
    absl::Status theirs = FromGrpc(reader->Finish());
    if (!ours.ok()) return ours;
    if (!IsLost(theirs)) return theirs;
    NIBBLE_RETURN_IF_ERROR(reconnect.Pause(theirs, reached));
  }
}

}  // namespace nibble::client
