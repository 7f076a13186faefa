// AttemptSupervisor: turns journal lines, from the disk or from the report stream, into events.
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/attempt_supervisor.h"
#include "server/jobs/progress.h"

namespace nibble::jobs {

using base::Json;
using base::StrCat;

namespace {

NewEvent FromLine(const JournalLine& line, std::int64_t attempt, base::Clock& clock) {
  NewEvent event;
  event.attempt = attempt;
  event.attempt_sequence = line.sequence;
  std::string error;
  // The trainer uses this machine's clock. An invalid time is replaced, not refused.
  if (!absl::ParseTime(absl::RFC3339_full, line.time, &event.time, &error)) event.time = clock.Now();
  event.type = line.type;
  event.fields = line.body;
  for (const char* key : {"sequence", "time", "type", "attempt"}) event.fields.erase(key);
  return event;
}

absl::Status Fenced(const std::string& job_id, std::int64_t attempt) {
  return base::WithReason(
      absl::FailedPreconditionError(StrCat("attempt ", attempt, " of job ", job_id, " is over: exit without writing")),
      "FENCED", {{"name", job_id}});
}

}  // namespace

absl::StatusOr<ReportAnswer> AttemptSupervisor::Ingest(const std::string& job_id, std::int64_t attempt,
                                                       const std::string& token,
                                                       const std::vector<std::string>& lines) {
  std::vector<JournalLine> parsed;
  for (const std::string& text : lines) {
    NIBBLE_ASSIGN_OR_RETURN(JournalLine line, ParseJournalLine(text));
    parsed.push_back(std::move(line));
  }
  base::MutexLock lock(mutex_);
  const auto it = live_.find(job_id);
  if (it == live_.end() || it->second.attempt != attempt) {
    NIBBLE_RETURN_IF_ERROR(database_.Get(job_id).status());
    return Fenced(job_id, attempt);
  }
  Live& live = it->second;
  if (live.token != token) {
    return base::WithReason(absl::UnauthenticatedError("wrong token for this attempt"), "TOKEN_INVALID");
  }
  // The trainer writes the journal on disk first, so the disk has the lines that the stream lacks.
  if (!parsed.empty() && parsed.front().sequence > live.last_sequence + 1) NIBBLE_RETURN_IF_ERROR(Follow(live));
  NIBBLE_RETURN_IF_ERROR(IngestLines(live, parsed));
  ReportAnswer answer;
  answer.acknowledged = live.last_sequence;
  answer.command = live.stop;
  return answer;
}

absl::Status AttemptSupervisor::Follow(Live& live) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<JournalLine> lines, live.journal.ReadNew());
  return IngestLines(live, lines);
}

absl::Status AttemptSupervisor::IngestLines(Live& live, const std::vector<JournalLine>& lines) {
  std::vector<NewEvent> events;
  const std::int64_t before = live.last_sequence;
  std::int64_t expected = before + 1;
  Json progress = live.progress;
  const auto flush = [&]() -> absl::Status {
    if (events.empty()) return absl::OkStatus();
    std::swap(live.progress, progress);
    if (absl::Status appended = Append(live, events); !appended.ok()) {
      std::swap(live.progress, progress);  // As if the lines had not arrived: they will come again.
      return appended;
    }
    progress = live.progress;
    live.last_sequence = expected - 1;
    for (const NewEvent& event : events) live.checkpointed |= event.type == CheckpointEvent::kType;
    events.clear();
    return absl::OkStatus();
  };
  for (const JournalLine& line : lines) {
    if (line.sequence < expected) continue;  // Already received from the disk or the stream.
    if (line.sequence > expected) {
      NIBBLE_RETURN_IF_ERROR(flush());
      return base::FieldError("sequence", StrCat("is ", line.sequence, ", wanted ", expected, ": lines are missing"));
    }
    const auto body = line.type == StateEvent::kType ? Decode(line.type, line.body) : std::nullopt;
    const auto* state = body.has_value() ? std::get_if<StateEvent>(&*body) : nullptr;
    if (state != nullptr && state->state == Name(JobState::kRunning)) {
      NIBBLE_RETURN_IF_ERROR(flush());
      NIBBLE_RETURN_IF_ERROR(BecomeRunning(live, line, *state));
      live.last_sequence = expected;
      progress = live.progress;
    } else {
      UpdateProgress(progress, line);
      events.push_back(FromLine(line, live.attempt, clock_));
    }
    ++expected;
  }
  NIBBLE_RETURN_IF_ERROR(flush());
  if (live.last_sequence != before) {
    live.last_line = clock_.Monotonic();
    hub_.Notify(live.job_id);
  }
  return absl::OkStatus();
}

absl::Status AttemptSupervisor::BecomeRunning(Live& live, const JournalLine& line, const StateEvent& state) {
  Json progress = live.progress;
  UpdateProgress(progress, line);
  Transition transition;
  transition.job_id = live.job_id;
  transition.from = JobState::kPreparing;
  transition.to = JobState::kRunning;
  transition.attempt = live.attempt;
  transition.progress = progress;
  NewEvent event = FromLine(line, live.attempt, clock_);
  StateEvent running = state;
  running.from = Name(JobState::kPreparing);
  running.resumed_step = state.step;
  event.fields = Encode(running);
  transition.events.push_back(event);
  NIBBLE_ASSIGN_OR_RETURN(const bool changed, database_.Apply(transition));
  if (changed) {
    live.progress = std::move(progress);
    if (observer_ == nullptr) return absl::OkStatus();
    NIBBLE_ASSIGN_OR_RETURN(const StoredJob job, database_.Get(live.job_id));
    observer_->OnEvent(job, {job.last_sequence, live.attempt, event.type, event.time, event.fields});
    return absl::OkStatus();
  }
  // The job was cancelled while its trainer loaded. The line is kept as a log event.
  const LogEvent late{.message = "the trainer started training after it was asked to stop"};
  event.type = TypeOf(late);
  event.fields = Encode(late);
  return Append(live, {event});
}

absl::Status AttemptSupervisor::Append(Live& live, const std::vector<NewEvent>& events) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Event> appended, database_.Append(live.job_id, events, &live.progress));
  if (observer_ == nullptr || appended.empty()) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const StoredJob job, database_.Get(live.job_id));
  for (const Event& event : appended) observer_->OnEvent(job, event);
  return absl::OkStatus();
}

}  // namespace nibble::jobs
