// The composition root: app.h and app.cc are the only files that know every folder. They turn flags into a running
// server.
#pragma once
#include <memory>

#include "absl/status/statusor.h"
#include "server/options.h"

namespace nibble {

// Used by one thread; starts others.
class App {
 public:
  // Errors: InvalidArgument (names the flag), FailedPrecondition (STATE_DIR_IN_USE), and those of the state directory,
  // the ports, MakeRunner (app_runner.h) and TlsWatch::Start.
  static absl::StatusOr<std::unique_ptr<App>> Start(const AppOptions& options);
  // Reads the TLS and token files now. Unusable files are logged, and the last good ones stay in use.
  void Reload();
  // Admits nothing new, lets requests end, and lets trainers write a checkpoint and end; trainers in pods continue.
  // Returns within about the longer of drain and job_grace, plus at most ten seconds until the ends of killed trainers
  // are recorded, and two for gRPC to shut down.
  void Drain();
  ~App();
  App(const App&) = delete;
  App& operator=(const App&) = delete;

  int grpc_port() const;
  int http_port() const;
  int report_port() const;  // 0 without --report_address
  int openai_port() const;  // 0 without --openai_address

 private:
  struct State;
  explicit App(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace nibble
