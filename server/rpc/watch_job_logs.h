#pragma once
#include <memory>

#include "nibble/v1/fine_tune_service.pb.h"
#include "server/jobs/controller.h"
#include "server/rpc/stream_reactor.h"

namespace nibble::rpc {

// Sends the logs of a job's trainers, as FineTuneService.WatchJobLogs documents. Reads them at the client's pace, four
// chunks at a time, so that a slow reader costs 256 KiB and misses nothing. At the end of a log that still grows, a
// timer waits, not a thread. The caller has checked that the job exists and may be seen.
void WatchJobLogs(std::shared_ptr<StreamReactor<v1::JobLogChunk>> stream, jobs::JobController& jobs,
                  const v1::WatchJobLogsRequest& request);

}  // namespace nibble::rpc
