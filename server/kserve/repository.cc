#include "server/kserve/repository.h"

#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/kserve/tensors.h"

namespace nibble::kserve {

namespace {

using base::FieldError;
using base::StrCat;
using google::longrunning::Operation;
using Parameters = google::protobuf::Map<std::string, inference::ModelRepositoryParameter>;

constexpr std::int32_t kPageSize = 1000;
constexpr char kUnloadDependents[] = "unload_dependents";
// WaitOperation answers a little before the client's deadline. Then there is no time to ask again.
constexpr absl::Duration kShortestWait = absl::Seconds(1);

void ListPage(std::shared_ptr<Incoming> incoming, const std::string& page_token,
              std::function<void(const v1::Model&)> take, std::function<void(Incoming&)> done) {
  v1::ListModelsRequest request;
  request.set_page_size(kPageSize);
  request.set_page_token(page_token);
  const auto stubs = incoming->stubs;
  CallUnary<v1::ListModelsResponse>(
      std::move(incoming), std::move(request),
      [stubs](auto... arguments) { stubs->models->async()->ListModels(arguments...); },
      [take = std::move(take), done = std::move(done)](const std::shared_ptr<Incoming>& again,
                                                       v1::ListModelsResponse& page) {
        for (const v1::Model& model : page.models()) take(model);
        if (page.next_page_token().empty()) return done(*again);
        ListPage(again, page.next_page_token(), take, done);
      });
}

void AwaitLoad(const std::shared_ptr<Incoming>& incoming, const Operation& operation) {
  if (operation.done()) {
    return incoming->call->Done(operation.has_error() ? FromInner(operation.error()) : absl::OkStatus());
  }
  const rpc::Call& call = incoming->call->call();
  if (call.deadline() - call.environment().clock.Monotonic() < kShortestWait)
    return incoming->call->Done(absl::DeadlineExceededError("the load continues after the call's deadline"));
  google::longrunning::WaitOperationRequest request;
  request.set_name(operation.name());
  const auto stubs = incoming->stubs;
  CallUnary<Operation>(
      incoming, std::move(request),
      [stubs](auto... arguments) { stubs->operations->async()->WaitOperation(arguments...); },
      [](const std::shared_ptr<Incoming>& again, Operation& waited) { AwaitLoad(again, waited); });
}

absl::Status CheckParameters(const Parameters& parameters, const char* allowed) {
  for (const auto& [key, value] : parameters) {
    const std::string field = StrCat("parameters.", key.substr(0, kMaxNameBytes));
    if (allowed == nullptr || key != allowed)
      return FieldError(field, "is not supported: the server has the model's files and configuration");
    if (!value.has_bool_param()) return FieldError(field, "wanted true or false");
  }
  return absl::OkStatus();
}

absl::Status CheckName(const char* field, const std::string& name) {
  return name.empty() ? FieldError(field, "is empty, wanted a model's name") : absl::OkStatus();
}

absl::Status Check(const inference::RepositoryModelLoadRequest& request) {
  NIBBLE_RETURN_IF_ERROR(CheckRepository(request.repository_name()));
  NIBBLE_RETURN_IF_ERROR(CheckName("model_name", request.model_name()));
  return CheckParameters(request.parameters(), nullptr);
}

absl::Status Check(const inference::RepositoryModelUnloadRequest& request) {
  NIBBLE_RETURN_IF_ERROR(CheckRepository(request.repository_name()));
  NIBBLE_RETURN_IF_ERROR(CheckName("model_name", request.model_name()));
  return CheckParameters(request.parameters(), kUnloadDependents);
}

}  // namespace

absl::Status CheckRepository(const std::string& name) {
  if (name.empty()) return absl::OkStatus();
  return base::WithReason(
      absl::UnimplementedError("repository_name: wanted none, because the server has one repository"), "UNIMPLEMENTED",
      {{"name", "repository_name"}});
}

void GetModel(std::shared_ptr<Incoming> incoming, const char* field, const std::string& name,
              const std::string& version, std::function<void(const std::shared_ptr<Incoming>&, v1::Model&)> on_ok) {
  absl::Status checked = CheckName(field, name);
  if (checked.ok()) checked = CheckVersion("version", name, version);
  if (!checked.ok()) return incoming->call->Done(checked);
  v1::GetModelRequest request;
  request.set_name(name);
  const auto stubs = incoming->stubs;
  CallUnary<v1::Model>(
      std::move(incoming), std::move(request),
      [stubs](auto... arguments) { stubs->models->async()->GetModel(arguments...); }, std::move(on_ok));
}

void ListModels(std::shared_ptr<Incoming> incoming, std::function<void(const v1::Model&)> take,
                std::function<void(Incoming&)> done) {
  ListPage(std::move(incoming), "", std::move(take), std::move(done));
}

void LoadModel(std::shared_ptr<Incoming> incoming, const inference::RepositoryModelLoadRequest& request) {
  if (const absl::Status status = Check(request); !status.ok()) return incoming->call->Done(status);
  v1::LoadModelRequest load;
  load.set_name(request.model_name());
  const auto stubs = incoming->stubs;
  CallUnary<Operation>(
      std::move(incoming), std::move(load),
      [stubs](auto... arguments) { stubs->models->async()->LoadModel(arguments...); },
      [](const std::shared_ptr<Incoming>& again, Operation& begun) { AwaitLoad(again, begun); });
}

void UnloadModel(std::shared_ptr<Incoming> incoming, const inference::RepositoryModelUnloadRequest& request) {
  if (const absl::Status status = Check(request); !status.ok()) return incoming->call->Done(status);
  v1::UnloadModelRequest unload;
  unload.set_name(request.model_name());
  const auto stubs = incoming->stubs;
  CallInner<v1::UnloadModelResponse>(
      std::move(incoming), std::move(unload),
      [stubs](auto... arguments) { stubs->models->async()->UnloadModel(arguments...); },
      [](const std::shared_ptr<Incoming>& again, const grpc::Status& status, v1::UnloadModelResponse&) {
        const absl::Status ended = FromInner(status);
        // For Triton's clients, a model that is not in memory is unloaded.
        again->call->Done(base::Reason(ended) == "MODEL_NOT_LOADED" ? absl::OkStatus() : ended);
      });
}

}  // namespace nibble::kserve
