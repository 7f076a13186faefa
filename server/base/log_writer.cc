#include "server/base/log_writer.h"

#include <pthread.h>

#include <deque>
#include <thread>
#include <utility>

#include "server/base/log_line.h"
#include "server/base/mutex.h"

namespace nibble::base {
namespace {

constexpr absl::Duration kFlushAtEnd = absl::Seconds(2);
constexpr char kDropped[] = "log lines were dropped: stderr was not read";

// The queue between the threads that log and the thread of a LogWriter. Thread-safe.
class LogQueue {
 public:
  static LogQueue& Get() {
    static LogQueue& queue = *new LogQueue;  // never destroyed: a thread may stall in a write until the process exits
    return queue;
  }

  void Open(std::size_t max_bytes) {
    MutexLock lock(mutex_);
    max_bytes_ = max_bytes;
    open_ = running_ = true;
    stop_ = false;
  }
  // False: there is no LogWriter; the caller must print the line.
  bool Take(const LogLine& line) {
    MutexLock lock(mutex_);
    if (!open_) return false;
    const std::size_t room = line.urgent ? max_bytes_ : max_bytes_ - max_bytes_ / 4;
    if (bytes_ + line.text.size() > room) {
      ++dropped_;
      ++unreported_;
      return true;
    }
    bytes_ += line.text.size();
    lines_.push_back(line);
    changed_.NotifyAll();
    return true;
  }
  bool Flush(absl::Duration patience) {
    MutexLock lock(mutex_);
    return changed_.WaitFor(lock, absl::ToChronoNanoseconds(patience), [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return lines_.empty() && unreported_ == 0 && !writing_;
    });
  }
  // Afterwards callers print their own lines again. If a write still stalls (not `flushed`), they keep using the queue,
  // because their own writes would stall too.
  void Close(bool flushed) {
    MutexLock lock(mutex_);
    open_ = !flushed;
    stop_ = true;
    changed_.NotifyAll();
    if (flushed) changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !running_; });
  }
  std::uint64_t dropped() const {
    MutexLock lock(mutex_);
    return dropped_;
  }
  // The writer's thread, until Close().
  void Run() {
    while (true) {
      std::deque<LogLine> lines;
      std::uint64_t unreported = 0;
      {
        MutexLock lock(mutex_);
        writing_ = false;
        changed_.NotifyAll();
        changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return stop_ || !lines_.empty() || unreported_ > 0;
        });
        if (lines_.empty() && unreported_ == 0) {
          running_ = false;
          changed_.NotifyAll();
          return;
        }
        writing_ = true;
        bytes_ = 0;
        lines.swap(lines_);
        std::swap(unreported, unreported_);
      }
      for (const LogLine& line : lines) PrintLogLine(line);
      // The reported lines were dropped while the lines above filled the queue.
      if (unreported > 0) PrintLogLine(FormatLogLine("warning", kDropped, {{"lines", unreported}}));
    }
  }

 private:
  mutable Mutex mutex_;
  Condition changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::size_t max_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<LogLine> lines_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t unreported_ ABSL_GUARDED_BY(mutex_) = 0;  // dropped, but not yet reported in a line
};

}  // namespace

bool QueueLogLine(const LogLine& line) { return LogQueue::Get().Take(line); }

LogWriter::LogWriter(std::size_t max_bytes) {
  LogQueue::Get().Open(max_bytes);
  std::thread([] {
    pthread_setname_np(pthread_self(), "nibble-log");
    LogQueue::Get().Run();
  }).detach();  // a stalled write cannot be interrupted
}

LogWriter::~LogWriter() { LogQueue::Get().Close(FlushLog(kFlushAtEnd)); }

bool FlushLog(absl::Duration patience) { return LogQueue::Get().Flush(patience); }

std::uint64_t LogLinesDropped() { return LogQueue::Get().dropped(); }

}  // namespace nibble::base
