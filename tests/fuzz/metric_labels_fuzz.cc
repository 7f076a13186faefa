// F10: a text in every label that takes one from outside of telemetry. Whatever it is, what is scraped is an exposition that
// Prometheus reads, with one line a series; a text that needs no mending comes back out of its escapes.
#include <algorithm>
#include <string>

#include "server/telemetry/metrics.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/exposition.h"

using nibble::fuzz::Expect;

namespace {

constexpr std::size_t kMaxText = 4096;  // stands in some hundred lines: time, not a limit of the product

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"' || c == '\n') out += '\\';
    out += c == '\n' ? 'n' : c;
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = nibble::fuzz::Text(data, size).substr(0, kMaxText);
  const std::string_view first = text.substr(0, text.size() / 2);
  const std::string_view second = text.substr(text.size() / 2);
  nibble::telemetry::Metrics metrics({"1", "c", "none"}, {.job_states = {"QUEUED"}});
  metrics.RpcKnown(text, first, second);
  metrics.RpcStarted(first, text, second);
  metrics.RpcHandled(first, second, text, text, 0.1);
  metrics.Rejected(text);
  metrics.AuthFailed(first);
  metrics.SetKernelLaunches(first, second, {{std::string(text), 1}});
  metrics.AddKernelLaunches(second, first, text, 1);
  metrics.RaisePeakMemory(first, second, 1);
  metrics.SetScheduler(text, {.waiting = 1});
  metrics.TokensGenerated(first, 1);
  metrics.GenerateEnded(second, text, {.ttft_seconds = 0.1, .decode_seconds = 1, .completion_tokens = 10});
  metrics.ModelLoaded(text, 1);
  metrics.SetTrainerDifference(first, 0.1);
  metrics.SetJobs(first, second, 1);
  metrics.JobCreated(text);
  metrics.JobFinished(first, second, 1);
  metrics.JobAttempt(second, first);
  metrics.JobFailed(text, text);
  metrics.TrainStep(first, {.tokens = 1, .seconds = 1, .loss = 1, .tokens_per_s = 1});
  metrics.CheckpointFailed(text);
  metrics.Converted(first, 1);
  metrics.SetArtifactBytes(second, 1);
  metrics.StoreOperation(text, 1);
  metrics.StoreError(first);
  metrics.SetDiskFree(second, 1);
  metrics.SetDiskLimits(text, 2, 1);
  const std::string exposition = metrics.Scrape();
  Expect(nibble::testing_support::ExpositionFault(exposition).empty(), "the exposition is one");
  if (std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > 0 && c < 0x80; })) {
    const std::string line = "nibble_rejected_total{reason=\"" + Escaped(text) + "\"} 1\n";
    Expect(exposition.find(line) != std::string::npos, "a plain text stays as it is");
  }
  return 0;
}
