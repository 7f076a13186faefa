#include "server/auth/method_rules.h"

#include <algorithm>
#include <iterator>

namespace nibble::auth {

namespace {

constexpr Access kByRole = Access::kRole;

// With a token file, a method without a line here is refused. auth_test finds a missing line.
constexpr MethodRule kRules[] = {
    {"nibble.v1.DatasetService/UploadDataset", kByRole, Role::kTrain},
    {"nibble.v1.DatasetService/GetDataset", kByRole, Role::kViewer},
    {"nibble.v1.DatasetService/ListDatasets", kByRole, Role::kViewer},
    {"nibble.v1.DatasetService/DeleteDataset", kByRole, Role::kTrain},
    {"nibble.v1.DatasetService/PreviewDataset", kByRole, Role::kTrain},   // shows the rows themselves
    {"nibble.v1.DatasetService/DownloadDataset", kByRole, Role::kTrain},  // likewise

    {"nibble.v1.FineTuneService/PlanJob", kByRole, Role::kTrain},
    {"nibble.v1.FineTuneService/CreateJob", kByRole, Role::kTrain},
    {"nibble.v1.FineTuneService/GetJob", kByRole, Role::kViewer},
    {"nibble.v1.FineTuneService/ListJobs", kByRole, Role::kViewer},
    {"nibble.v1.FineTuneService/DeleteJob", kByRole, Role::kTrain},
    {"nibble.v1.FineTuneService/WatchJob", kByRole, Role::kViewer},
    {"nibble.v1.FineTuneService/WatchJobLogs", kByRole, Role::kViewer},
    {"nibble.v1.FineTuneService/ListJobEvents", kByRole, Role::kViewer},
    {"nibble.v1.FineTuneService/ListCheckpoints", kByRole, Role::kViewer},
    {"nibble.v1.FineTuneService/CancelJob", kByRole, Role::kTrain},
    {"nibble.v1.FineTuneService/PauseJob", kByRole, Role::kTrain},
    {"nibble.v1.FineTuneService/ResumeJob", kByRole, Role::kTrain},
    {"nibble.v1.FineTuneService/CheckpointJob", kByRole, Role::kTrain},

    {"nibble.v1.ModelService/UploadModel", kByRole, Role::kTrain},
    {"nibble.v1.ModelService/ImportModel", kByRole, Role::kTrain},
    {"nibble.v1.ModelService/GetModel", kByRole, Role::kViewer},
    {"nibble.v1.ModelService/ListModels", kByRole, Role::kViewer},
    {"nibble.v1.ModelService/DeleteModel", kByRole, Role::kTrain},
    {"nibble.v1.ModelService/ConvertModel", kByRole, Role::kTrain},
    {"nibble.v1.ModelService/ExportModel", kByRole, Role::kTrain},
    {"nibble.v1.ModelService/DownloadArtifact", kByRole, Role::kTrain},  // sends out the weights
    {"nibble.v1.ModelService/LoadModel", kByRole, Role::kTrain},
    {"nibble.v1.ModelService/UnloadModel", kByRole, Role::kTrain},
    {"nibble.v1.ModelService/PublishCheckpoint", kByRole, Role::kTrain},
    {"nibble.v1.ModelService/VerifyModel", kByRole, Role::kInfer},

    {"nibble.v1.UploadService/GetUpload", kByRole, Role::kTrain},
    {"nibble.v1.UploadService/ListUploads", kByRole, Role::kTrain},
    {"nibble.v1.UploadService/CancelUpload", kByRole, Role::kTrain},

    {"nibble.v1.InferenceService/Generate", kByRole, Role::kInfer},
    {"nibble.v1.InferenceService/GenerateStream", kByRole, Role::kInfer},
    {"nibble.v1.InferenceService/Chat", kByRole, Role::kInfer},
    {"nibble.v1.InferenceService/ChatStream", kByRole, Role::kInfer},
    {"nibble.v1.InferenceService/Score", kByRole, Role::kInfer},
    {"nibble.v1.InferenceService/ScoreStream", kByRole, Role::kInfer},
    {"nibble.v1.InferenceService/Tokenize", kByRole, Role::kInfer},
    {"nibble.v1.InferenceService/Detokenize", kByRole, Role::kInfer},
    {"nibble.v1.InferenceService/RenderTemplate", kByRole, Role::kInfer},
    {"nibble.v1.InferenceService/GetTokenizerConfig", kByRole, Role::kInfer},
    {"nibble.v1.InferenceService/Embed", kByRole, Role::kInfer},
    {"nibble.v1.InferenceService/Abort", kByRole, Role::kInfer},

    {"nibble.v1.ServerService/GetServerInfo", kByRole, Role::kViewer},
    {"nibble.v1.ServerService/GetLoad", kByRole, Role::kViewer},
    {"nibble.v1.ServerService/WatchLoad", kByRole, Role::kViewer},
    {"nibble.v1.ServerService/Drain", kByRole, Role::kAdmin},
    {"nibble.v1.ServerService/SetResourcePolicy", kByRole, Role::kAdmin},

    {"google.longrunning.Operations/ListOperations", kByRole, Role::kViewer},
    {"google.longrunning.Operations/GetOperation", kByRole, Role::kViewer},
    {"google.longrunning.Operations/WaitOperation", kByRole, Role::kViewer},
    {"google.longrunning.Operations/DeleteOperation", kByRole, Role::kTrain},
    {"google.longrunning.Operations/CancelOperation", kByRole, Role::kInfer},  // below train: own operations only

    // With --kserve. The role of each method is that of its counterpart above.
    {"inference.GRPCInferenceService/ServerLive", Access::kHealth, Role::kViewer},
    {"inference.GRPCInferenceService/ServerReady", Access::kHealth, Role::kViewer},
    {"inference.GRPCInferenceService/ModelReady", kByRole, Role::kViewer},
    {"inference.GRPCInferenceService/ServerMetadata", kByRole, Role::kViewer},
    {"inference.GRPCInferenceService/ModelMetadata", kByRole, Role::kViewer},
    {"inference.GRPCInferenceService/ModelInfer", kByRole, Role::kInfer},
    {"inference.GRPCInferenceService/ModelStreamInfer", kByRole, Role::kInfer},
    {"inference.GRPCInferenceService/ModelConfig", kByRole, Role::kViewer},
    {"inference.GRPCInferenceService/ModelStatistics", kByRole, Role::kViewer},
    {"inference.GRPCInferenceService/RepositoryIndex", kByRole, Role::kViewer},
    {"inference.GRPCInferenceService/RepositoryModelLoad", kByRole, Role::kTrain},
    {"inference.GRPCInferenceService/RepositoryModelUnload", kByRole, Role::kTrain},
    {"inference.GRPCInferenceService/SystemSharedMemoryStatus", kByRole, Role::kViewer},
    {"inference.GRPCInferenceService/SystemSharedMemoryRegister", kByRole, Role::kAdmin},
    {"inference.GRPCInferenceService/SystemSharedMemoryUnregister", kByRole, Role::kAdmin},
    {"inference.GRPCInferenceService/CudaSharedMemoryStatus", kByRole, Role::kViewer},
    {"inference.GRPCInferenceService/CudaSharedMemoryRegister", kByRole, Role::kAdmin},
    {"inference.GRPCInferenceService/CudaSharedMemoryUnregister", kByRole, Role::kAdmin},
    {"inference.GRPCInferenceService/TraceSetting", kByRole, Role::kAdmin},
    {"inference.GRPCInferenceService/LogSettings", kByRole, Role::kAdmin},

    {"grpc.health.v1.Health/Check", Access::kHealth, Role::kViewer},
    {"grpc.health.v1.Health/Watch", Access::kHealth, Role::kViewer},
    {"grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Access::kReflection, Role::kViewer},

    {"nibble.internal.v1.TrainerReportService/Report", Access::kTrainer, Role::kAdmin},
};

constexpr const char* kRoleNames[] = {"viewer", "infer", "train", "operator", "admin"};

}  // namespace

const char* Name(Role role) { return kRoleNames[static_cast<int>(role)]; }

std::optional<Role> ParseRole(std::string_view name) {
  const auto* const found = std::find(std::begin(kRoleNames), std::end(kRoleNames), name);
  if (found == std::end(kRoleNames)) return std::nullopt;
  return static_cast<Role>(found - std::begin(kRoleNames));
}

std::span<const MethodRule> MethodRules() { return kRules; }

const MethodRule* FindRule(std::string_view path) {
  if (!path.empty() && path.front() == '/') path.remove_prefix(1);
  const auto* const found =
      std::find_if(std::begin(kRules), std::end(kRules), [&](const MethodRule& r) { return r.method == path; });
  return found == std::end(kRules) ? nullptr : found;
}

}  // namespace nibble::auth
