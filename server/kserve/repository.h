// Calls about models: lists, loads and unloads.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "inference/grpc_service.pb.h"
#include "nibble/v1/model_service.pb.h"
#include "server/kserve/inner_calls.h"

namespace nibble::kserve {

// Calls on_ok with the model. An error, also of the version, ends the client's call. `field`: that of the name in the
// client's request.
void GetModel(std::shared_ptr<Incoming> incoming, const char* field, const std::string& name,
              const std::string& version, std::function<void(const std::shared_ptr<Incoming>&, v1::Model&)> on_ok);

// Calls `take` with every model, sorted by name, and then `done`. An error ends the client's call.
void ListModels(std::shared_ptr<Incoming> incoming, std::function<void(const v1::Model&)> take,
                std::function<void(Incoming&)> done);

// These end the client's call.
void LoadModel(std::shared_ptr<Incoming> incoming, const inference::RepositoryModelLoadRequest& request);
void UnloadModel(std::shared_ptr<Incoming> incoming, const inference::RepositoryModelUnloadRequest& request);

// Errors: Unimplemented.
absl::Status CheckRepository(const std::string& name);

}  // namespace nibble::kserve
