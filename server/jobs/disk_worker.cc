#include "server/jobs/disk_worker.h"

namespace nibble::jobs {

void DiskWorker::Stop() {
  {
    base::MutexLock lock(mutex_);
    stopping_ = true;
    waiting_.clear();
    if (working_.has_value()) working_->Cancel();
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void DiskWorker::AwaitIdle() {
  base::MutexLock lock(mutex_);
  changed_.Wait(lock,
                [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiting_.empty() && !working_.has_value(); });
}

void DiskWorker::Add(Piece piece) {
  base::MutexLock lock(mutex_);
  if (stopping_) return;
  waiting_.push_back(std::move(piece));
  changed_.NotifyAll();
}

void DiskWorker::Work() {
  base::MutexLock lock(mutex_);
  while (true) {
    changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    Piece piece = std::move(waiting_.front());
    waiting_.pop_front();
    working_ = piece.cancel;
    lock.Unlock();
    piece.work();
    piece.work = nullptr;  // Releases what the work holds before it counts as done.
    on_done_();
    lock.Lock();
    working_.reset();
    changed_.NotifyAll();
  }
}

}  // namespace nibble::jobs
