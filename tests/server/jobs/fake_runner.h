#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/base/mutex.h"
#include "server/jobs/attempt.h"
#include "server/jobs/journal.h"
#include "server/jobs/runner.h"
#include "server/store/checkpoints.h"

namespace nibble::jobs {

// The machine on which trainers run. It outlives controllers and runners, as the processes of a real machine do. The
// test writes what trainers would write, and ends them. Thread-safe.
class FakeMachine {
 public:
  struct Trainer {
    AttemptOrder order;
    std::string directory;
    std::unique_ptr<JournalWriter> journal;
    std::vector<Runner::Signal> signals;
    std::optional<ExitStatus> exit;  // set once it has ended
    std::int64_t pid = 0;
  };

  explicit FakeMachine(base::Clock& clock) : clock_(clock) {}

  // The trainer of an attempt's directory; null if there never was one.
  Trainer* Find(const std::string& directory) {
    base::MutexLock lock(mutex_);
    const auto it = trainers_.find(directory);
    return it == trainers_.end() ? nullptr : &it->second;
  }
  std::vector<Trainer*> All() {
    base::MutexLock lock(mutex_);
    std::vector<Trainer*> all;
    for (auto& [directory, trainer] : trainers_) all.push_back(&trainer);
    return all;
  }
  void Exit(Trainer& trainer, int code) { End(trainer, {ExitStatus::Kind::kExited, code}); }
  void Kill(Trainer& trainer, int signal = 9) { End(trainer, {ExitStatus::Kind::kSignaled, signal}); }
  int num_alive() {
    base::MutexLock lock(mutex_);
    int alive = 0;
    for (auto& [directory, trainer] : trainers_) alive += !trainer.exit.has_value();
    return alive;
  }
  // Forgets all trainers, for a test that starts again with an empty state directory.
  void Forget() {
    base::MutexLock lock(mutex_);
    trainers_.clear();
  }
  // Start returns this if it is an error.
  absl::Status fail_start;

 private:
  friend class FakeRunner;
  void End(Trainer& trainer, ExitStatus exit) {
    base::MutexLock lock(mutex_);
    trainer.journal.reset();
    trainer.exit = exit;
  }

  base::Clock& clock_;
  base::Mutex mutex_;
  std::map<std::string, Trainer> trainers_ ABSL_GUARDED_BY(mutex_);
  std::int64_t next_pid_ = 1000;
};

class FakeRunner : public Runner {
 public:
  explicit FakeRunner(FakeMachine& machine) : machine_(machine) {}

  absl::StatusOr<ProcessId> Start(const std::string& directory) override {
    if (!machine_.fail_start.ok()) return machine_.fail_start;
    auto order = ReadAttemptOrder(base::RealFileSystem(), directory);
    if (!order.ok()) return order.status();
    base::MutexLock lock(machine_.mutex_);
    if (machine_.trainers_.contains(directory)) return absl::AlreadyExistsError("two writers of " + directory);
    FakeMachine::Trainer& trainer = machine_.trainers_[directory];
    trainer.order = *order;
    trainer.directory = directory;
    trainer.journal = *JournalWriter::Open(base::RealFileSystem(), machine_.clock_, directory);
    trainer.pid = machine_.next_pid_++;
    children_.push_back(directory);
    return ProcessId{trainer.pid, trainer.pid * 7};
  }
  absl::StatusOr<ProcessId> Adopt(const std::string& directory, std::optional<ProcessId> recorded) override {
    base::MutexLock lock(machine_.mutex_);
    const auto it = machine_.trainers_.find(directory);
    if (it == machine_.trainers_.end() || it->second.exit.has_value()) return absl::NotFoundError("dead");
    return recorded.value_or(ProcessId{it->second.pid, it->second.pid * 7});
  }
  std::optional<ExitStatus> Poll(const std::string& directory) override {
    base::MutexLock lock(machine_.mutex_);
    const auto& exit = machine_.trainers_.at(directory).exit;
    const bool child = std::find(children_.begin(), children_.end(), directory) != children_.end();
    return !exit.has_value() || child ? exit : ExitStatus{};
  }
  void Send(const std::string& directory, Signal signal) override {
    base::MutexLock lock(machine_.mutex_);
    FakeMachine::Trainer& trainer = machine_.trainers_.at(directory);
    trainer.signals.push_back(signal);
    if (signal == Signal::kKill && !trainer.exit.has_value()) {
      trainer.journal.reset();
      trainer.exit = ExitStatus{ExitStatus::Kind::kSignaled, 9};
    }
  }

 private:
  FakeMachine& machine_;
  std::vector<std::string> children_;
};

}  // namespace nibble::jobs
