// Linked into every test of the preset tsan. Debian's gRPC is not instrumented and locks with absl::Mutex, whose
// futexes and atomics ThreadSanitizer does not see either: data that one thread hands to another through gRPC would
// look like a race. This file therefore reports gRPC's locks, and the start and end of every operation, to
// ThreadSanitizer, all as one lock, because gRPC also hands data over by atomics between them. A race of ours is missed
// if, between the two accesses, one thread calls into gRPC and the other returns from it. Threads that synchronize
// without gRPC (the engine, the pools, the controller) are checked as usual.
#include <dlfcn.h>
#include <grpc/grpc.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "absl/synchronization/mutex.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}

namespace {

char g_all_locks;
void Acquired() { __tsan_acquire(&g_all_locks); }
void Releasing() { __tsan_release(&g_all_locks); }

// Calls the library function named `symbol()`; the definitions below precede it in the order of look-up.
template <typename Result, typename Symbol, typename... Arguments>
Result Real(Symbol symbol, Arguments... arguments) {
  using Function = Result(Arguments...);
  static std::atomic<Function*> known{nullptr};  // one per symbol: each lambda has its own type
  Function* function = known.load(std::memory_order_relaxed);
  if (function == nullptr) {
    function = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, symbol()));
    if (function == nullptr) {  // abseil's inline namespace depends on the packager: "debian3" in Debian 12
      std::fprintf(stderr, "tsan_grpc.cc: no library has %s\n", symbol());
      std::abort();
    }
    known.store(function, std::memory_order_relaxed);
  }
  return function(arguments...);
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  Real<void>([] { return "_ZN4absl7debian35Mutex4LockEv"; }, this);
  Acquired();
}

void Mutex::Unlock() {
  Releasing();
  Real<void>([] { return "_ZN4absl7debian35Mutex6UnlockEv"; }, this);
}

bool Mutex::TryLock() {
  const bool locked = Real<bool>([] { return "_ZN4absl7debian35Mutex7TryLockEv"; }, this);
  if (locked) Acquired();
  return locked;
}

void Mutex::ReaderLock() {
  Real<void>([] { return "_ZN4absl7debian35Mutex10ReaderLockEv"; }, this);
  Acquired();
}

void Mutex::ReaderUnlock() {
  Releasing();
  Real<void>([] { return "_ZN4absl7debian35Mutex12ReaderUnlockEv"; }, this);
}

void CondVar::Wait(Mutex* mutex) {
  Releasing();
  Real<void>([] { return "_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE"; }, this, mutex);
  Acquired();
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  Releasing();
  const bool late = Real<bool>([] { return "_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"; },
                               this, mutex, timeout);
  Acquired();
  return late;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  Releasing();
  const bool late = Real<bool>([] { return "_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"; }, this,
                               mutex, deadline);
  Acquired();
  return late;
}

ABSL_NAMESPACE_END
}  // namespace absl

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, std::size_t count, void* tag,
                                      void* reserved) {
  Releasing();
  return Real<grpc_call_error>([] { return "grpc_call_start_batch"; }, call, ops, count, tag, reserved);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline, void* reserved) {
  const grpc_event event = Real<grpc_event>([] { return "grpc_completion_queue_next"; }, queue, deadline, reserved);
  Acquired();
  return event;
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag, gpr_timespec deadline, void* reserved) {
  const grpc_event event =
      Real<grpc_event>([] { return "grpc_completion_queue_pluck"; }, queue, tag, deadline, reserved);
  Acquired();
  return event;
}

}  // extern "C"
