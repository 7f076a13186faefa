#include "server/app_runner.h"

#include <cstdint>
#include <string>
#include <utility>

#include "server/base/files.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/kubernetes_runner.h"
#include "server/jobs/local_runner.h"

namespace nibble {

namespace {

constexpr std::uint64_t kMaxTemplateBytes = 1 << 20;  // a ConfigMap holds at most 1 MiB

absl::StatusOr<TrainerRunner> MakeClusterRunner(const AppOptions& options) {
  const KubernetesOptions& flags = options.kubernetes;
  if (flags.templates.empty()) {
    return absl::InvalidArgumentError(
        "--trainer_templates: wanted a file of trainer templates with --runner kubernetes");
  }
  if (flags.server_name.empty()) {
    return absl::InvalidArgumentError(
        "--kubernetes_server_name: wanted a name that no other server of the namespace has, with --runner kubernetes");
  }
  jobs::KubernetesRunnerOptions runner;
  NIBBLE_ASSIGN_OR_RETURN(runner.access, kube::ClusterAccessOf(flags.cluster, options.environment));
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, base::RealFileSystem().Read(flags.templates, kMaxTemplateBytes));
  auto templates = jobs::ParseTrainerTemplates(text);
  if (!templates.ok()) {
    return absl::InvalidArgumentError(
        base::StrCat("--trainer_templates: ", flags.templates, ": ", templates.status().message()));
  }
  // Seconds by which the pod's grace period exceeds --pause_grace_s, so that the server kills the trainer first.
  constexpr double kAfterGrace = 10;
  runner.jobs = {.server = flags.server_name,
                 .queue = flags.queue,
                 .grace_seconds = static_cast<std::int64_t>(options.pause_grace_s + kAfterGrace),
                 .templates = *std::move(templates)};
  runner.start_timeout = absl::Seconds(flags.start_timeout_s);
  runner.lost_node_timeout = absl::Seconds(flags.lost_node_timeout_s);
  base::LogInfo("trainers run as Kubernetes Jobs",
                {{"namespace", runner.access.name_space}, {"server_name", flags.server_name}, {"queue", flags.queue}});
  std::string name_space = runner.access.name_space;
  NIBBLE_ASSIGN_OR_RETURN(auto made, jobs::MakeKubernetesRunner(std::move(runner)));
  return TrainerRunner{.runner = std::move(made), .name_space = std::move(name_space)};
}

}  // namespace

absl::StatusOr<TrainerRunner> MakeRunner(const AppOptions& options) {
  if (options.runner == "kubernetes") return MakeClusterRunner(options);
  return TrainerRunner{.runner = jobs::MakeLocalRunner({.trainer_path = options.trainer_path,
                                                        .environment = jobs::TrainerEnvironment(options.environment)}),
                       .name_space = ""};
}

}  // namespace nibble
