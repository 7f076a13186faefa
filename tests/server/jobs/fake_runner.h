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
// test writes what trainers would write, and ends them. Thread-safe, except for the public members, which a test sets
// between two rounds of the controller.
class FakeMachine {
 public:
  struct Trainer {
    AttemptOrder order;
    std::string directory;
    std::unique_ptr<JournalWriter> journal;
    std::vector<Runner::Signal> signals;
    std::optional<TrainerEnd> end;  // set once it has ended
    std::int64_t pid = 0;
    bool forgotten = false;
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
  void Exit(Trainer& trainer, int code) { End(trainer, {TrainerEnd::Cause::kExited, code}); }
  void Kill(Trainer& trainer, int signal = 9) { End(trainer, {TrainerEnd::Cause::kSignaled, signal}); }
  int num_alive() {
    base::MutexLock lock(mutex_);
    int alive = 0;
    for (auto& [directory, trainer] : trainers_) alive += !trainer.end.has_value();
    return alive;
  }
  // Forgets all trainers, for a test that starts again with an empty state directory.
  void Forget() {
    base::MutexLock lock(mutex_);
    trainers_.clear();
  }
  // Ends the trainer with any cause, such as an eviction by a cluster. The trainer writes nothing more.
  void End(Trainer& trainer, TrainerEnd end) {
    base::MutexLock lock(mutex_);
    trainer.journal.reset();
    trainer.end = std::move(end);
  }
  // Trainers do not start if this is an error.
  absl::Status fail_start;
  // Trainers are still starting while this is not empty: why they wait.
  std::string waiting_for;

 private:
  friend class FakeRunner;

  base::Clock& clock_;
  base::Mutex mutex_;
  std::map<std::string, Trainer> trainers_ ABSL_GUARDED_BY(mutex_);
  std::int64_t next_pid_ = 1000;
};

class FakeRunner : public Runner {
 public:
  explicit FakeRunner(FakeMachine& machine) : machine_(machine) {}

  void Start(const TrainerRequest& request) override {
    const std::string& directory = request.directory;
    if (absl::Status started = Launch(directory); !started.ok()) {
      not_started_[directory] = {.cause = TrainerEnd::Cause::kNotStarted, .failure = std::move(started)};
    }
  }
  absl::StatusOr<bool> Adopt(const TrainerRequest& request, const std::string& /*recorded*/) override {
    base::MutexLock lock(machine_.mutex_);
    const auto it = machine_.trainers_.find(request.directory);
    return it != machine_.trainers_.end() && !it->second.end.has_value();
  }
  TrainerState Poll(const std::string& directory) override {
    using Phase = TrainerState::Phase;
    if (const auto failed = not_started_.find(directory); failed != not_started_.end()) {
      return {.phase = Phase::kEnded, .end = failed->second};
    }
    base::MutexLock lock(machine_.mutex_);
    const FakeMachine::Trainer& trainer = machine_.trainers_.at(directory);
    TrainerState state{.phase = Phase::kRunning, .handle = std::to_string(trainer.pid)};
    if (!machine_.waiting_for.empty()) {
      state = {.phase = Phase::kStarting, .handle = "", .waiting_for = machine_.waiting_for};
    }
    if (!trainer.end.has_value()) return state;
    const bool child = std::find(children_.begin(), children_.end(), directory) != children_.end();
    state.phase = Phase::kEnded;
    state.end = child ? *trainer.end : TrainerEnd{};  // only a parent learns the exit status
    return state;
  }
  void Send(const std::string& directory, Signal signal) override {
    base::MutexLock lock(machine_.mutex_);
    FakeMachine::Trainer& trainer = machine_.trainers_.at(directory);
    trainer.signals.push_back(signal);
    if (signal == Signal::kKill && !trainer.end.has_value()) {
      trainer.journal.reset();
      trainer.end = TrainerEnd{TrainerEnd::Cause::kSignaled, 9};
    }
  }
  void Forget(const std::string& directory) override {
    base::MutexLock lock(machine_.mutex_);
    const auto it = machine_.trainers_.find(directory);
    if (it != machine_.trainers_.end()) it->second.forgotten = true;
  }

 private:
  absl::Status Launch(const std::string& directory) {
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
    return absl::OkStatus();
  }

  FakeMachine& machine_;
  std::vector<std::string> children_;
  std::map<std::string, TrainerEnd> not_started_;
};

}  // namespace nibble::jobs
