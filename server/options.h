// Options of nibbled: its flags (app_flags.h checks them), and options that only tests set.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/base/files.h"
#include "server/kube/cluster.h"
#include "server/limits.h"
#include "server/serve/engine.h"

namespace nibble {

// Authentication and transport of the API. Empty: not set.
struct SecurityOptions {
  std::string tls_cert;  // PEM files
  std::string tls_key;
  std::string tls_client_ca;
  bool tls_require_client_cert = false;
  std::string token_file;  // format in docs/formats.md; "": no token is required
  bool insecure = false;   // allows an address that is not loopback without TLS or without tokens
  bool reflection = false;
  bool health_without_token = false;
  bool reflection_without_token = false;
};

// The listener for the reports of trainers that cannot use the trainers' socket. Empty: not set.
struct ReportOptions {
  std::string address;  // HOST:PORT
  std::string target;   // HOST:PORT that trainers dial; "": `address`
  std::string ca;       // PEM file with which trainers check the server's certificate
};

// The listener of OpenAI's API. Empty: not set.
struct OpenAiOptions {
  std::string address;                     // HOST:PORT
  std::vector<std::string> cors_origins;   // origins of web pages that may call it; "*": all
  double response_ttl_s = 3600;            // time for which /v1/responses keeps a response; 0: it keeps none
  std::int64_t response_bytes = 64 << 20;  // of all responses that it keeps
};

// --runner kubernetes.
struct KubernetesOptions {
  std::string templates;    // file: {"cpu": JOB, "cuda": JOB} (jobs/kubernetes_job.h)
  std::string server_name;  // label of this server's Jobs
  std::string queue;        // Kueue's LocalQueue; "": without Kueue
  kube::ClusterOptions cluster;
  double start_timeout_s = 300;      // then a trainer with a wrong image, configuration or rights has failed to start
  double lost_node_timeout_s = 300;  // then the attempt of a node that does not answer is given up
};

struct AppOptions : Limits {
  std::string state_dir;
  std::string database_dir;  // "": the state directory
  std::string grpc_address = "127.0.0.1:50051";
  std::string http_address = "127.0.0.1:9464";
  std::string device = "auto";   // auto | cpu
  std::string isa = "auto";      // auto | plain | avx2 | avx512
  std::string import_root;       // "": imports by a path on the server are refused
  std::string trainer_path;      // "": jobs are refused
  std::string runner = "local";  // local | kubernetes: where trainers run
  KubernetesOptions kubernetes;
  std::vector<std::string> environment;  // "KEY=VALUE", of this process; filtered for trainers
  int threads = 1;
  int trainer_threads = 0;  // of each trainer; 0: `threads`
  serve::EngineOptions engine;
  SecurityOptions security;
  ReportOptions report;
  OpenAiOptions openai;
  bool kserve = false;  // serves KServe's V2 protocol on grpc_address too
  // File system of the state directory; nullptr: the real one. Tests inject faults. Must outlive the App.
  base::FileSystem* files = nullptr;

  absl::Duration drain = absl::Seconds(20);      // for running requests
  absl::Duration job_grace = absl::Seconds(25);  // for trainers to write a checkpoint
};

}  // namespace nibble
