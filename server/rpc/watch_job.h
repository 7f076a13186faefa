#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "nibble/v1/fine_tune_service.pb.h"
#include "server/jobs/controller.h"
#include "server/rpc/stream_reactor.h"

namespace nibble::rpc {

// Sends a snapshot, then the job's events after `after` in order and without repetition, as they happen. Ends the
// stream after the last event of a final job. Reads events from the database at the client's pace, so a slow reader
// costs no memory and misses nothing.
void WatchJob(std::shared_ptr<StreamReactor<v1::JobEvent>> stream, jobs::JobController& jobs, const std::string& name,
              std::int64_t after);

}  // namespace nibble::rpc
