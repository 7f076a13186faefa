// Runs streams on workers, and refuses them when too many wait.
#pragma once
#include <functional>
#include <string>
#include <utility>

#include "server/auth/request_owner.h"
#include "server/base/queue_full.h"
#include "server/base/worker_pool.h"

namespace nibble::rpc {

// Runs `work` on one of `workers`. When their queue is full, ends the stream with QUEUE_FULL.
template <typename Stream>
void RunOnWorker(base::WorkerPool& workers, Stream& stream, std::function<void()> work) {
  const std::string principal = auth::FairnessKey(stream.call().principal());
  if (!workers.TryRun(std::move(work), principal)) stream.End(base::TooManyWait(workers, principal));
}

}  // namespace nibble::rpc
