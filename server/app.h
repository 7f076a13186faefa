// The composition root: the only file, with its .cc, that knows every folder. Flags in, a running server out.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/files.h"
#include "server/limits.h"
#include "server/serve/engine.h"

namespace nibble {

// Authentication and transport of the API. Empty: not set.
struct SecurityOptions {
  std::string tls_cert;       // PEM files
  std::string tls_key;
  std::string tls_client_ca;
  bool tls_require_client_cert = false;
  std::string token_file;     // format in docs/formats.md; "": no token is required
  bool insecure = false;      // allows an address that is not loopback without TLS or tokens
  bool reflection = false;
  bool health_without_token = false;
  bool reflection_without_token = false;
};

struct AppOptions : Limits {
  std::string state_dir;
  std::string grpc_address = "127.0.0.1:50051";
  std::string http_address = "127.0.0.1:9464";
  std::string device = "auto";  // auto | cpu
  std::string isa = "auto";     // auto | plain | avx2 | avx512
  std::string import_root;      // "": paths of the server are refused
  std::string trainer_path;     // "": jobs are refused
  std::vector<std::string> environment;  // "KEY=VALUE", of this process; filtered for trainers
  int threads = 1;
  serve::EngineOptions engine;
  SecurityOptions security;
  // For the state directory; nullptr: the real one. Tests inject faults. Must outlive the App.
  base::FileSystem* files = nullptr;

  absl::Duration drain = absl::Seconds(20);       // for running requests
  absl::Duration job_grace = absl::Seconds(25);   // for trainers to write a checkpoint
};

// Used by one thread; starts others.
class App {
 public:
  // Errors: InvalidArgument (names the flag), FailedPrecondition (STATE_DIR_IN_USE), and those of the state directory
  // and the ports.
  static absl::StatusOr<std::unique_ptr<App>> Start(const AppOptions& options);
  // Reads the TLS and token files now. Unusable files are logged, and the last good ones stay in use.
  void Reload();
  // Admits nothing new, lets requests end, and lets trainers write a checkpoint and end. Returns within the longer of
  // drain and job_grace.
  void Drain();
  ~App();
  App(const App&) = delete;
  App& operator=(const App&) = delete;

  int grpc_port() const;
  int http_port() const;

 private:
  struct State;
  explicit App(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace nibble
