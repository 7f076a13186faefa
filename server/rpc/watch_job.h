#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "nibble/v1/fine_tune_service.pb.h"
#include "server/jobs/controller.h"
#include "server/rpc/stream_reactor.h"

namespace nibble::rpc {

// A snapshot, then the job's events above `after` in order and without repetition, as they come; ends the stream after the last of a
// final job. Reads them from the database at the client's pace: a slow reader costs nothing and loses nothing.
void WatchJob(std::shared_ptr<StreamReactor<v1::JobEvent>> stream, jobs::JobController& jobs, const std::string& name,
              std::int64_t after);

}  // namespace nibble::rpc
