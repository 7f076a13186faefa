// A watch that survives lost connections and server restarts. Its only state is the sequence of the last event.
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "client/client.h"
#include "client/lost_connection.h"
#include "client/stubs.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::client {
namespace {

// A watch fails after this number of consecutive streams that end with OK without a new event or the job's end.
constexpr int kMaxIdleEnds = 5;
constexpr int kPageEvents = 1000;

using OnEvent = std::function<absl::Status(const v1::JobEvent&)>;

// Passes on each new event, in order, and records when the job is over.
class Cursor {
 public:
  Cursor(std::int64_t after, const OnEvent& on_event) : last_(after), on_event_(on_event) {}

  absl::Status Take(const v1::JobEvent& event) {
    if (event.sequence() <= last_) return absl::OkStatus();  // Seen on an earlier connection.
    last_ = event.sequence();
    if (event.has_state()) final_ = IsFinal(event.state().to());
    return on_event_(event);
  }
  std::int64_t last() const { return last_; }
  bool final() const { return final_; }
  void SetFinal() { final_ = true; }

 private:
  std::int64_t last_;
  const OnEvent& on_event_;
  bool final_ = false;
};

// Reads the events that the stream skipped from the log.
class LogReader {
 public:
  using List = std::function<absl::StatusOr<v1::ListJobEventsResponse>(const v1::ListJobEventsRequest&)>;
  LogReader(std::string job, List list, Cursor& cursor)
      : job_(std::move(job)), list_(std::move(list)), cursor_(cursor) {}

  // Takes the events up to but excluding `before`. The server has removed those that are missing in the log too
  // (--keep_step_events).
  absl::Status ReadUntil(std::int64_t before) {
    while (!ahead_.empty() && ahead_.front() <= cursor_.last()) ahead_.pop_front();
    if (!ahead_.empty() && ahead_.front() == before) return absl::OkStatus();
    while (cursor_.last() + 1 < before) {
      v1::ListJobEventsRequest request;
      request.set_name(job_);
      request.set_after_sequence(cursor_.last());
      request.set_page_size(kPageEvents);
      const absl::StatusOr<v1::ListJobEventsResponse> page = list_(request);
      if (!page.ok()) {
        if (IsLost(page.status())) lost_ = page.status();
        return page.status();
      }
      const std::int64_t had = cursor_.last();
      NIBBLE_RETURN_IF_ERROR(Take(*page, before));
      if (!ahead_.empty()) return absl::OkStatus();
      if (cursor_.last() == had) {
        return absl::DataLossError(
            base::StrCat("malformed response: the log of job ", job_, " ends before event ", cursor_.last() + 1));
      }
    }
    return absl::OkStatus();
  }
  // Why the connection was lost in a call of this reader since the last call of TakeLost; OK if it was not.
  absl::Status TakeLost() { return std::exchange(lost_, absl::OkStatus()); }

 private:
  absl::Status Take(const v1::ListJobEventsResponse& page, std::int64_t before) {
    ahead_.clear();
    for (const v1::JobEvent& event : page.events()) {
      if (event.sequence() >= before) {
        ahead_.push_back(event.sequence());
      } else {
        NIBBLE_RETURN_IF_ERROR(cursor_.Take(event));
      }
    }
    return absl::OkStatus();
  }

  const std::string job_;
  const List list_;
  Cursor& cursor_;
  // Sequences in the last page that are not below `before`. If the stream's next event has the first of these
  // sequences, the log has no event before it that is still missing.
  std::deque<std::int64_t> ahead_;
  absl::Status lost_;
};

// The result of reading one stream of a watch.
struct StreamEnd {
  absl::Status ours;    // an error of on_event or of the log, or a malformed event; an error cancels the stream
  absl::Status theirs;  // the status of the stream
  bool read_any = false;
  // Whether the job was over when the stream began, and the sequence of its last event at that time.
  bool over_at_start = false;
  std::int64_t last_at_start = 0;
};

StreamEnd ReadStream(grpc::ClientContext& context, grpc::ClientReaderInterface<v1::JobEvent>& reader, LogReader& log,
                     Cursor& cursor) {
  StreamEnd end;
  v1::JobEvent event;
  while (end.ours.ok() && reader.Read(&event)) {
    end.read_any = true;
    if (event.has_snapshot()) {
      end.over_at_start = IsFinal(event.snapshot().job().state());
      end.last_at_start = event.snapshot().last_sequence();
    } else if (event.sequence() < 1) {
      end.ours = absl::DataLossError("malformed response: an event without a sequence");
    } else {
      end.ours = log.ReadUntil(event.sequence());
      if (end.ours.ok()) end.ours = cursor.Take(event);
    }
  }
  if (!end.ours.ok()) context.TryCancel();
  end.theirs = FromGrpc(reader.Finish());
  return end;
}

}  // namespace

bool IsFinal(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_CANCELLED;
}

absl::StatusOr<v1::Job> Client::WatchJob(const std::string& name, std::int64_t after_sequence,
                                         const std::function<absl::Status(const v1::JobEvent&)>& on_event) {
  using v1::FineTuneService;
  Cursor cursor(after_sequence, on_event);
  const auto list = [this](const v1::ListJobEventsRequest& request) {
    return Call(&FineTuneService::Stub::ListJobEvents, request);
  };
  LogReader log(name, list, cursor);

  Reconnect reconnect(options_);
  bool reached = false;
  int idle_ends = 0;
  while (true) {
    const std::int64_t had = cursor.last();
    grpc::ClientContext context;
    SetDeadline(context, options_.long_deadline);
    v1::WatchJobRequest request;
    request.set_name(name);
    request.set_after_sequence(cursor.last());
    const StreamEnd end = ReadStream(context, *stubs_->jobs->WatchJob(&context, request), log, cursor);
    reached = reached || end.read_any;
    absl::Status lost = log.TakeLost();  // why the connection was lost, in any call of the watch
    if (!end.ours.ok() && lost.ok()) return end.ours;
    const bool other_calls_work = lost.ok();
    if (lost.ok() && !end.theirs.ok()) {
      if (!IsLost(end.theirs)) return end.theirs;
      lost = end.theirs;
    }
    // The log of a final job is complete. After a broken stream, the next stream brings the missing events.
    if (end.over_at_start && cursor.last() >= end.last_at_start) cursor.SetFinal();
    // The connection works again if the stream brought messages, unless other calls of the watch failed or only GetJob
    // is left: those could fail forever while every new stream brings messages.
    if (end.read_any && other_calls_work && !cursor.final()) reconnect.Works();
    if (lost.ok() && cursor.final()) {
      v1::GetJobRequest get;
      get.set_name(name);
      absl::StatusOr<v1::Job> job = Call(&FineTuneService::Stub::GetJob, get);
      if (job.ok() || !IsLost(job.status())) return job;
      lost = job.status();
    }
    idle_ends = lost.ok() && cursor.last() == had ? idle_ends + 1 : 0;
    if (idle_ends >= kMaxIdleEnds) {
      return absl::DataLossError(
          base::StrCat("malformed response: the server ended the watch of job ", name, ", which is not over"));
    }
    NIBBLE_RETURN_IF_ERROR(reconnect.Pause(lost, reached));
  }
}

}  // namespace nibble::client
