#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kernels/isa.h"

namespace nibble::rpc {

// The data of GetServerInfo, which server/app_info.cc gathers. Fields without a comment have the meaning of the field
// of nibble.v1.ServerInfo, its device or its limits to which server_answers.cc converts them.
struct ServerFacts {
  std::string version;
  std::string commit;
  std::string code_digest;
  std::string cuda_version;
  absl::Time started;
  std::string cpu_name;
  kernels::Isa isa = kernels::Isa::kPlain;
  std::int64_t memory_total_bytes = 0;
  std::int64_t memory_free_bytes = 0;
  int threads = 0;
  std::vector<std::string> job_methods;
  std::string runner;
  std::string kubernetes_namespace;
  std::string kubernetes_queue;

  struct Limits {
    std::int64_t max_message_bytes = 0;
    std::int64_t max_chunk_bytes = 0;
    std::int64_t max_dataset_bytes = 0;
    std::int64_t max_model_bytes = 0;
    std::int64_t max_waiting_requests = 0;
    std::int64_t max_running_requests = 0;
    std::int64_t max_queued_jobs = 0;
    std::int64_t max_jobs_per_principal = 0;
    std::int64_t max_dataset_line_bytes = 0;
    std::int64_t max_tokenizer_bytes = 0;
    absl::Duration max_stream_age;
    std::int64_t max_upload_bytes_per_principal = 0;
    absl::Duration upload_kept;
    absl::Duration generate_deadline = absl::InfiniteDuration();   // infinite: none
    absl::Duration operation_deadline = absl::InfiniteDuration();  // infinite: none
  } limits;
};

}  // namespace nibble::rpc
