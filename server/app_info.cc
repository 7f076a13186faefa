#include "server/app_info.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "server/base/files.h"
#include "server/build_info.h"
#include "server/jobs/method.h"
#include "server/limits.h"

namespace nibble {

namespace {

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, 10, "model name") == 0 && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  }
  return "CPU";
}

rpc::ServerFacts::Limits LimitsOf(const AppOptions& options, const rpc::CallEnvironment& calls) {
  return {.max_message_bytes = options.max_receive_bytes,
          .max_chunk_bytes = static_cast<std::int64_t>(calls.max_chunk_bytes),
          .max_dataset_bytes = options.max_dataset_bytes,
          .max_model_bytes = options.max_model_bytes,
          .max_waiting_requests = static_cast<std::int64_t>(options.engine.max_waiting),
          .max_running_requests = static_cast<std::int64_t>(options.engine.max_running),
          .max_queued_jobs = options.max_queued_jobs,
          .max_jobs_per_principal = options.max_jobs_per_principal,
          .max_dataset_line_bytes = options.max_dataset_line_bytes,
          .max_tokenizer_bytes = options.max_tokenizer_bytes,
          .max_stream_age = calls.max_stream_age,
          .max_upload_bytes_per_principal = options.max_upload_bytes_per_principal,
          .upload_kept = absl::Seconds(options.upload_kept_s),
          .generate_deadline = calls.generate_deadline,
          .operation_deadline = options.operation_deadline_s > 0 ? absl::Seconds(options.operation_deadline_s)
                                                                 : absl::InfiniteDuration()};
}

}  // namespace

rpc::ServerFacts GatherFacts(const AppOptions& options, const rpc::CallEnvironment& calls, kernels::Isa isa,
                             absl::Time started, const std::string& trainer_namespace) {
  rpc::ServerFacts facts;
  facts.version = kVersion;
  facts.commit = BuiltFrom().commit;
  facts.code_digest = BuiltFrom().code_digest;
  facts.cuda_version = BuiltFrom().cuda;
  facts.started = started;
  facts.cpu_name = CpuName();
  facts.isa = isa;
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  // The memory that jobs and models are admitted against: in a container, the container's limit.
  facts.memory_total_bytes = MachineMemoryBytes(base::RealFileSystem(), "/").value_or(sysconf(_SC_PHYS_PAGES) * page);
  facts.memory_free_bytes = std::min(facts.memory_total_bytes, sysconf(_SC_AVPHYS_PAGES) * page);
  facts.threads = options.threads;
  // Without a trainer the server trains nothing.
  if (!options.trainer_path.empty()) {
    for (const jobs::Method* method : jobs::Methods()) facts.job_methods.emplace_back(method->name());
  }
  facts.runner = options.runner;
  facts.kubernetes_namespace = trainer_namespace;
  if (options.runner == "kubernetes") facts.kubernetes_queue = options.kubernetes.queue;
  facts.limits = LimitsOf(options, calls);
  return facts;
}

}  // namespace nibble
