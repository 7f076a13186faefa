// A watch that survives lost connections and server restarts. Its only state is the sequence of the last event.
#include <algorithm>
#include <deque>

#include "client/client.h"
#include "client/stubs.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::client {
namespace {

// Maximum consecutive streams that end with OK and bring no new event although the job is not over.
constexpr int kMaxIdleEnds = 5;
constexpr int kPageEvents = 1000;

using OnEvent = std::function<absl::Status(const v1::JobEvent&)>;

// Maximum pause between two attempts, so that a watch continues soon after a restart of the server.
constexpr absl::Duration kLongestPause = absl::Seconds(1);

// Whether the connection was lost. A stream that loses its transport may also end with UNKNOWN, and a call that a
// draining server cuts off with CANCELLED, both without a reason.
bool IsLost(const absl::Status& status) {
  const bool cut_off = absl::IsUnknown(status) || absl::IsCancelled(status);
  return absl::IsUnavailable(status) || (cut_off && base::Reason(status).empty());
}

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

}  // namespace

bool IsFinal(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_CANCELLED;
}

absl::StatusOr<v1::Job> Client::WatchJob(const std::string& name, std::int64_t after_sequence,
                                         const std::function<absl::Status(const v1::JobEvent&)>& on_event) {
  using v1::FineTuneService;
  Cursor cursor(after_sequence, on_event);

  absl::Status lost;  // why the connection was lost, in any call of the watch

  // Reads the events that the stream skipped, up to but excluding `before`, from the log. Events that the log does not
  // have either were removed by the server (--keep_step_events). `ahead`: sequences from `before` on, of the page read
  // last; when the stream's next event is the first of them, the log has nothing in between.
  std::deque<std::int64_t> ahead;
  const auto fill = [&](std::int64_t before) -> absl::Status {
    while (!ahead.empty() && ahead.front() <= cursor.last()) ahead.pop_front();
    if (!ahead.empty() && ahead.front() == before) return absl::OkStatus();
    while (cursor.last() + 1 < before) {
      v1::ListJobEventsRequest request;
      request.set_name(name);
      request.set_after_sequence(cursor.last());
      request.set_page_size(kPageEvents);
      const absl::StatusOr<v1::ListJobEventsResponse> page = Call(&FineTuneService::Stub::ListJobEvents, request);
      if (!page.ok()) {
        if (IsLost(page.status())) lost = page.status();
        return page.status();
      }
      const std::int64_t had = cursor.last();
      ahead.clear();
      for (const v1::JobEvent& event : page->events()) {
        if (event.sequence() >= before) {
          ahead.push_back(event.sequence());
        } else {
          NIBBLE_RETURN_IF_ERROR(cursor.Take(event));
        }
      }
      if (!ahead.empty()) return absl::OkStatus();
      if (cursor.last() == had) {
        return absl::DataLossError(
            base::StrCat("malformed response: the log of job ", name, " ends before event ", cursor.last() + 1));
      }
    }
    return absl::OkStatus();
  };

  absl::Time lost_since = absl::InfiniteFuture();
  bool reached = false;
  int attempts = 0;  // before the first message
  absl::Duration wait = options_.first_wait;
  int idle_ends = 0;
  while (true) {
    const std::int64_t had = cursor.last();
    lost = absl::OkStatus();
    grpc::ClientContext context;
    SetDeadline(context, options_.long_deadline);
    v1::WatchJobRequest request;
    request.set_name(name);
    request.set_after_sequence(cursor.last());
    auto reader = stubs_->jobs->WatchJob(&context, request);
    v1::JobEvent event;
    absl::Status ours = absl::OkStatus();
    bool over_at_start = false, read_any = false;
    std::int64_t last_at_start = 0;
    while (ours.ok() && reader->Read(&event)) {
      read_any = reached = true;
      if (event.has_snapshot()) {
        over_at_start = IsFinal(event.snapshot().job().state());
        last_at_start = event.snapshot().last_sequence();
        continue;
      }
      if (event.sequence() < 1) {
        ours = absl::DataLossError("malformed response: an event without a sequence");
        break;
      }
      ours = fill(event.sequence());
      if (ours.ok()) ours = cursor.Take(event);
    }
    if (!ours.ok()) context.TryCancel();
    const absl::Status theirs = FromGrpc(reader->Finish());
    if (!ours.ok() && lost.ok()) return ours;
    const bool other_calls_work = lost.ok();
    if (lost.ok() && !theirs.ok()) {
      if (!IsLost(theirs)) return theirs;
      lost = theirs;
    }
    // The log of a final job is complete. After a broken stream the next one brings the missing events.
    if (over_at_start && cursor.last() >= last_at_start) cursor.SetFinal();
    // The connection works again if the stream brought messages, unless other calls of the watch failed or only GetJob
    // is left: those could fail forever while every new stream brings messages.
    if (read_any && other_calls_work && !cursor.final()) {
      lost_since = absl::InfiniteFuture();
      wait = options_.first_wait;
    }
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
    if (!reached && !lost.ok() && ++attempts >= options_.attempts) return lost;
    const absl::Time now = absl::Now();
    if (reached && !lost.ok() && lost_since == absl::InfiniteFuture() && options_.on_lost) options_.on_lost(lost);
    lost_since = std::min(lost_since, now);
    if (now - lost_since > options_.reconnect_for) return lost;
    const absl::Duration longest = std::min(options_.longest_wait, kLongestPause);
    absl::SleepFor(std::min(RetryDelay(lost).value_or(wait), longest));
    wait = std::min(wait * 2, longest);
  }
}

}  // namespace nibble::client
