#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/cli/app.h"
#include "client/cli/command.h"
#include "client/cli/terminal.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"

namespace nibble::cli {
namespace {

struct LogOptions {
  std::string job;
  bool follow = false;
  std::optional<std::int32_t> attempt;
  std::optional<std::int64_t> tail;
};

// Prints a log that arrives in pieces. A terminal and JSON get whole characters; any other output gets the bytes
// unchanged.
class LogPrinter {
 public:
  LogPrinter(Session& session, std::string job) : session_(session), job_(std::move(job)) {}

  bool took_any() const { return attempt_ > 0; }

  void Take(const v1::JobLogChunk& chunk) {
    if (chunk.attempt() != attempt_) {
      End();
      if (attempt_ > 0) {
        session_.terminal.err << "attempt " << chunk.attempt() << '\n' << std::flush;
      }
      attempt_ = chunk.attempt();
    }
    if (!session_.json && !session_.terminal.out_is_tty) {
      session_.out() << chunk.data() << std::flush;
      return;
    }
    const std::int64_t offset = chunk.offset() - static_cast<std::int64_t>(rest_.size());
    rest_ += chunk.data();
    std::string text;
    rest_.erase(0, base::TakeWholeCharacters(rest_, &text));
    Print(offset, text);
    next_ = chunk.offset() + static_cast<std::int64_t>(chunk.data().size());
  }
  // Prints U+FFFD in place of the bytes held back as the possible beginning of a character.
  void End() {
    if (rest_.empty()) return;
    const std::int64_t offset = next_ - static_cast<std::int64_t>(rest_.size());
    rest_.clear();
    Print(offset, "\xEF\xBF\xBD");
  }

 private:
  void Print(std::int64_t offset, const std::string& text) {
    if (text.empty()) return;
    if (session_.json) {
      session_.Print({{"job_id", job_}, {"attempt", attempt_}, {"offset", offset}, {"text", text}});
    } else {
      session_.out() << Visible(text) << std::flush;
    }
  }

  Session& session_;
  const std::string job_;
  std::int32_t attempt_ = 0;  // 0: nothing has arrived
  std::int64_t next_ = 0;     // byte after the last one that arrived
  std::string rest_;          // the beginning of a character, at most three bytes
};

absl::Status Logs(Session& session, const LogOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckText("id", options.job));
  v1::WatchJobLogsRequest request;
  request.set_name(options.job);
  if (options.attempt.has_value()) request.set_attempt(*options.attempt);
  if (options.follow) request.set_follow(true);
  if (options.tail.has_value()) request.set_tail_lines(*options.tail);
  if (options.follow) session.NoteJobContinues(options.job);
  LogPrinter printer(session, options.job);
  absl::Status status = session.client().WatchJobLogs(request, [&](const v1::JobLogChunk& chunk) {
    printer.Take(chunk);
    // The output is gone (a closed pipe): this ends the watch, not the job.
    return session.out() ? absl::OkStatus() : absl::CancelledError("the output was closed");
  });
  printer.End();
  // Otherwise an empty answer would look like a failure of the command.
  if (status.ok() && !session.json && !printer.took_any() && options.tail != 0) {
    session.terminal.err << "the trainer wrote nothing to its log, or no attempt has begun\n" << std::flush;
  }
  if (!status.ok() && options.follow && printer.took_any() && session.out()) {
    session.terminal.err << Printable(base::StrCat("the log of job ", options.job,
                                                   " was cut off; follow it again with: nibble jobs logs -f ",
                                                   options.job))
                         << '\n';
  }
  return status;
}

}  // namespace

void AddLogsCommand(CLI::App& jobs, Session& session) {
  CLI::App* sub = jobs.add_subcommand("logs", "Print what the trainer of a job wrote to its log");
  auto o = std::make_shared<LogOptions>();
  sub->add_option("ID", o->job, "Job")->required();
  sub->add_flag("-f,--follow", o->follow,
                base::StrCat("Also print what follows, and later attempts, until the job ends or is paused; ",
                             WaitsForTheServer()));
  sub->add_option("--attempt", o->attempt, "Number of the first attempt to print (default: the last attempt)")
      ->check(CLI::Range(1, 1 << 30));
  sub->add_option("--tail", o->tail, "Begin with this many lines at the end of the log (default: all lines)")
      ->check(WholeNumber)
      ->check(CLI::NonNegativeNumber);
  sub->callback([&session, o] { session.command = [&session, o] { return Logs(session, *o); }; });
}

}  // namespace nibble::cli
