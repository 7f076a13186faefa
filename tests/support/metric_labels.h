// Every label of server/telemetry/metrics.h that takes text from outside that folder. Add each new method here too.
#pragma once
#include <string>
#include <string_view>

#include "server/telemetry/metrics.h"

namespace nibble::testing_support {

// Makes at least one series with every method that takes such a text. A method with several labels gets several of the
// three texts, in varying order.
inline void TouchEveryLabel(telemetry::Metrics& metrics, std::string_view a, std::string_view b, std::string_view c) {
  metrics.RpcKnown(a, b, c);
  metrics.RpcStarted(b, a, c);
  metrics.RpcHandled(b, c, a, a, 0.1);
  metrics.Rejected(a);
  metrics.ClientRequest(c);
  metrics.OpenAiRequests(b, 1);
  metrics.OpenAiAnswer(a, 200);
  metrics.AuthFailed(b);
  metrics.SetKernelLaunches(b, c, {{std::string(a), 1}});
  metrics.AddKernelLaunches(c, b, a, 1);
  metrics.RaisePeakMemory(b, c, 1);
  metrics.SetScheduler(a, {.waiting = 1});
  metrics.TokensGenerated(b, 1);
  metrics.GenerateEnded(c, a, {.ttft_seconds = 0.1, .decode_seconds = 1, .completion_tokens = 10});
  metrics.ModelLoaded(a, 1);
  metrics.SetTrainerDifference(b, 0.1);
  metrics.SetJobs(b, c, 1);
  metrics.JobCreated(a);
  metrics.JobFinished(b, c, 1);
  metrics.JobAttempt(c, b);
  metrics.JobFailed(a, a);
  metrics.TrainStep(b, c, {.tokens = 1, .seconds = 1, .loss = 1, .tokens_per_s = 1});
  metrics.CheckpointFailed(a);
  metrics.Converted(b, 1);
  metrics.SetArtifactBytes(c, 1);
  metrics.StoreOperation(a, 1);
  metrics.StoreError(b);
  metrics.SetDiskFree(c, 1);
  metrics.SetDiskLimits(a, 2, 1);
}

}  // namespace nibble::testing_support
