// Every metric of the server; families.h gives the names. Other folders call these methods and never include the
// metrics library.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::telemetry {

struct BuildInfo {
  std::string version;
  std::string revision;   // commit; "" if unknown
  std::string cuda;       // "none" or a version
  std::string code = {};  // digest of the sources; "" if unknown
};

// Label values that are known in advance: their counters and gauges exist with 0 from the start. The histograms of a
// method appear with its first job.
struct KnownLabels {
  std::vector<std::string> devices = {"cpu"};
  std::vector<std::string> job_methods = {"qlora"};
  std::vector<std::string> job_states;
};

// The state of one engine's scheduler.
struct SchedulerState {
  std::int64_t waiting = 0;
  std::int64_t running = 0;
  std::int64_t kv_blocks_used = 0;
  std::int64_t kv_blocks = 0;
};

struct StepSample {
  std::int64_t tokens = 0;
  double seconds = 0;
  double loss = 0;
  double tokens_per_s = 0;
};

struct GenerateSample {
  double ttft_seconds = 0;  // 0: no token was generated
  double decode_seconds = 0;
  std::int64_t prompt_tokens = 0;  // computed prompt tokens
  std::int64_t completion_tokens = 0;
};

// Thread-safe. Label values come from closed sets, or are names of models or ids of jobs that train now. The first
// kMaxModelLabels models have a label value each; all others share "other".
class Metrics {
 public:
  static constexpr std::size_t kMaxModelLabels = 200;

  Metrics(const BuildInfo& build, const KnownLabels& known);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The text exposition (version 0.0.4). Collectors run first.
  std::string Scrape();
  // Each scrape calls the collector, which sets values that are only looked up then. Everything it refers to must live
  // until ClearCollectors or the end of this object.
  void AddCollector(std::function<void(Metrics&)> collector);
  void ClearCollectors();

  // RPCs; type "unary" | "client_stream" | "server_stream" | "bidi_stream", service "nibble.v1.ModelService". RpcKnown
  // adds the method's counters with 0. Its histogram comes with the first call, because the histograms of all methods
  // would be half of a scrape. So a rate over the histogram may miss the first call, and one over
  // the counter of completed calls the first with a code other than OK.
  void RpcKnown(std::string_view type, std::string_view service, std::string_view method);
  void RpcStarted(std::string_view type, std::string_view service, std::string_view method);
  void RpcHandled(std::string_view type, std::string_view service, std::string_view method, std::string_view code,
                  double seconds);
  void Rejected(std::string_view reason);
  // A request of a client that used this protocol: "grpc" | "kserve". OpenAiRequests() counts those of "openai".
  void ClientRequest(std::string_view protocol);
  // Requests to the listener of OpenAI's API; `route` from the gateway's table, or "unknown". 0 creates this series
  // and the series of answers with status 200.
  void OpenAiRequests(std::string_view route, int requests);
  // An answer of that listener; `status` of HTTP.
  void OpenAiAnswer(std::string_view route, unsigned status);
  // Of /v1/responses.
  void SetStoredResponses(std::size_t responses, std::size_t bytes);
  void AuthFailed(std::string_view reason);
  void SetCertificateExpiry(std::string_view file, double unix_seconds);  // file "server" | "client_ca"
  void SetTlsFilesOk(bool ok);
  void SetTokenFileOk(bool ok);

  // Kernels. Set takes the kernels' own total counts, which only rise; Add takes the launches that a trainer reports.
  void SetKernelLaunches(std::string_view phase, std::string_view device,
                         const std::map<std::string, std::uint64_t>& counts);
  void AddKernelLaunches(std::string_view phase, std::string_view device, std::string_view kernel,
                         std::uint64_t launches);
  void RaisePeakMemory(std::string_view process, std::string_view device, std::uint64_t bytes);

  // Serving.
  void SetScheduler(std::string_view model, const SchedulerState& state);
  // Total of all models since the start; never falls.
  void SetPreemptions(std::uint64_t count);
  void TokensGenerated(std::string_view model, std::size_t tokens);
  void GenerateEnded(std::string_view model, std::string_view result, const GenerateSample& sample);
  void ModelLoaded(std::string_view model, double seconds);
  // Adapter loaded: largest absolute logprob difference from its trainer, in nats.
  void SetTrainerDifference(std::string_view model, double nats);
  // `names`: every model there is. Removes the series of a model that neither this call nor the one before it named.
  // A scrape thus shows a model's last values before its series are removed. The removal lets another model have its
  // own label value (kMaxModelLabels).
  void KeepModels(const std::set<std::string, std::less<>>& names);

  // Jobs.
  void SetJobs(std::string_view method, std::string_view state, std::int64_t jobs);
  void JobCreated(std::string_view method);
  void JobFinished(std::string_view method, std::string_view result, double seconds);
  void JobAttempt(std::string_view method, std::string_view reason);  // "start", "FAILED", "LOST", "PREEMPTED", ...
  void JobFailed(std::string_view method, std::string_view reason);   // call JobFinished too; reason "NAN_LOSS", ...
  void JobQueueWait(double seconds);
  void TrainStep(std::string_view method, std::string_view job_id, const StepSample& sample);
  // An attempt of the job ended: removes the job's series, and sets the method's rate to 0 if none of its jobs trains.
  void TrainingEnded(std::string_view job_id);
  void CheckpointSaved(double seconds, std::int64_t bytes, double unix_seconds);
  void CheckpointFailed(std::string_view reason);

  // Artifacts and disk.
  void Converted(std::string_view format, double seconds);
  void SetArtifactBytes(std::string_view kind, std::int64_t bytes);
  void ArtifactVerifyFailed();
  void StoreOperation(std::string_view operation, double seconds);
  void StoreError(std::string_view reason);
  void SetDiskFree(std::string_view volume, std::uint64_t bytes);
  // Constant while the server runs.
  void SetDiskLimits(std::string_view volume, std::uint64_t size_bytes, std::uint64_t watermark_bytes);

 private:
  struct Families;
  void SetProcess();

  std::unique_ptr<Families> families_;
};

}  // namespace nibble::telemetry
