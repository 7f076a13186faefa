#pragma once
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/jobs/database.h"

namespace nibble::jobs {

// A database in which write number `fail_at` (counted from 1) and all later ones fail, as if the process was killed
// there. Write `fail_at` is lost or, with `after`, on the disk but unacknowledged. ForgetRequests, CollectEvents and
// ThinSteps are not counted and never fail.
class FaultyDatabase : public Database {
 public:
  FaultyDatabase(std::unique_ptr<Database> real, int fail_at, bool after)
      : real_(std::move(real)), fail_at_(fail_at), after_(after) {}
  int writes() const { return writes_; }
  bool dead() const { return writes_ >= fail_at_; }

  absl::StatusOr<Inserted> Insert(const StoredJob& job, const std::string& request, const std::string& digest,
                                  const NewEvent& event) override {
    return Write<absl::StatusOr<Inserted>>([&] { return real_->Insert(job, request, digest, event); });
  }
  absl::StatusOr<std::optional<StoredJob>> FindRequest(const std::string& request, const std::string& digest) override {
    return real_->FindRequest(request, digest);
  }
  absl::Status ForgetRequests(absl::Time before) override { return real_->ForgetRequests(before); }
  absl::StatusOr<StoredJob> Get(const std::string& id) override { return real_->Get(id); }
  absl::StatusOr<JobPage> List(const JobQuery& query, std::int64_t limit, const base::CancelToken& cancel) override {
    return real_->List(query, limit, cancel);
  }
  absl::StatusOr<std::vector<QueuedJob>> Queue() override { return real_->Queue(); }
  absl::StatusOr<std::set<std::string>> Ids() override { return real_->Ids(); }
  absl::StatusOr<LogEnd> EndOfLog(const std::string& id) override { return real_->EndOfLog(id); }
  absl::StatusOr<std::vector<StoredJob>> ListAll(const std::vector<JobState>& states) override {
    return real_->ListAll(states);
  }
  absl::StatusOr<std::vector<StoredJob>> ListUnpublished() override { return real_->ListUnpublished(); }
  absl::StatusOr<std::int64_t> Count(JobState state) override { return real_->Count(state); }
  absl::StatusOr<std::int64_t> CountOpen(const std::string& owner, const std::string& tenant) override {
    return real_->CountOpen(owner, tenant);
  }
  absl::StatusOr<std::vector<JobCount>> Counts() override { return real_->Counts(); }
  absl::Status Delete(const std::string& id, const IfEtag& etag) override {
    return Write<absl::Status>([&] { return real_->Delete(id, etag); });
  }
  absl::StatusOr<bool> CollectEvents(std::int64_t limit) override { return real_->CollectEvents(limit); }
  absl::StatusOr<bool> ThinSteps(std::int64_t keep, std::int64_t limit) override {
    return real_->ThinSteps(keep, limit);
  }
  absl::StatusOr<std::vector<std::string>> EndedBefore(absl::Time before, std::int64_t limit) override {
    return real_->EndedBefore(before, limit);
  }
  absl::StatusOr<bool> Apply(const Transition& transition) override {
    return Write<absl::StatusOr<bool>>([&] { return real_->Apply(transition); });
  }
  absl::Status RecordTrainer(const std::string& id, std::int64_t attempt, const std::string& handle,
                             const std::optional<OomCount>& oom) override {
    return Write<absl::Status>([&] { return real_->RecordTrainer(id, attempt, handle, oom); });
  }
  absl::StatusOr<bool> MarkPublished(const std::string& id, const std::vector<NewEvent>& events) override {
    return Write<absl::StatusOr<bool>>([&] { return real_->MarkPublished(id, events); });
  }
  absl::StatusOr<StoredAttempt> GetAttempt(const std::string& id, std::int64_t attempt) override {
    return real_->GetAttempt(id, attempt);
  }
  absl::StatusOr<std::vector<Event>> Append(const std::string& id, const std::vector<NewEvent>& events,
                                            const base::Json* progress) override {
    return Write<absl::StatusOr<std::vector<Event>>>([&] { return real_->Append(id, events, progress); });
  }
  absl::StatusOr<bool> AppendWhile(const StoredJob& seen, const std::vector<NewEvent>& events) override {
    return Write<absl::StatusOr<bool>>([&] { return real_->AppendWhile(seen, events); });
  }
  absl::StatusOr<std::vector<Event>> Events(const std::string& id, std::int64_t after, std::int64_t limit) override {
    return real_->Events(id, after, limit);
  }
  absl::StatusOr<std::vector<Event>> EventsBefore(const std::string& id, std::int64_t before,
                                                  std::int64_t limit) override {
    return real_->EventsBefore(id, before, limit);
  }
  absl::StatusOr<std::int64_t> LastAttemptSequence(const std::string& id, std::int64_t attempt) override {
    return real_->LastAttemptSequence(id, attempt);
  }

 private:
  template <typename R, typename F>
  R Write(F f) {
    const int number = ++writes_;
    if (number < fail_at_) return f();
    if (number == fail_at_ && after_) (void)f();
    return absl::UnavailableError("injected");
  }

  const std::unique_ptr<Database> real_;
  const int fail_at_;
  const bool after_;
  std::atomic<int> writes_ = 0;
};

// A database whose Apply and Append fail with Unavailable while `refuses` is set. One thread.
class RefusingDatabase : public FaultyDatabase {
 public:
  explicit RefusingDatabase(std::unique_ptr<Database> real)
      : FaultyDatabase(std::move(real), std::numeric_limits<int>::max(), /*after=*/false) {}
  bool refuses = false;

  absl::StatusOr<bool> Apply(const Transition& transition) override {
    return refuses ? absl::UnavailableError("injected") : FaultyDatabase::Apply(transition);
  }
  absl::StatusOr<std::vector<Event>> Append(const std::string& id, const std::vector<NewEvent>& events,
                                            const base::Json* progress) override {
    return refuses ? absl::UnavailableError("injected") : FaultyDatabase::Append(id, events, progress);
  }
};

// Calls `meddle` once, just before the next Delete or AppendWhile, so that a test can change the job after the caller
// has read it. One thread.
class MeddledDatabase : public FaultyDatabase {
 public:
  explicit MeddledDatabase(std::unique_ptr<Database> real)
      : FaultyDatabase(std::move(real), std::numeric_limits<int>::max(), /*after=*/false) {}
  std::function<void()> meddle;

  absl::Status Delete(const std::string& id, const IfEtag& etag) override {
    Meddle();
    return FaultyDatabase::Delete(id, etag);
  }
  absl::StatusOr<bool> AppendWhile(const StoredJob& seen, const std::vector<NewEvent>& events) override {
    Meddle();
    return FaultyDatabase::AppendWhile(seen, events);
  }

 private:
  void Meddle() {
    if (const auto once = std::exchange(meddle, nullptr)) once();
  }
};

}  // namespace nibble::jobs
