// Calls of the gRPC API inside the process, for a client of this listener.
#pragma once
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>

#include "nibble/v1/dataset_service.grpc.pb.h"
#include "nibble/v1/fine_tune_service.grpc.pb.h"
#include "nibble/v1/inference_service.grpc.pb.h"
#include "nibble/v1/model_service.grpc.pb.h"
#include "server/auth/authority.h"
#include "server/http/exchange.h"

namespace nibble::openai {

struct Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : datasets(v1::DatasetService::NewStub(channel)),
        fine_tuning(v1::FineTuneService::NewStub(channel)),
        inference(v1::InferenceService::NewStub(channel)),
        models(v1::ModelService::NewStub(channel)) {}
  const std::unique_ptr<v1::DatasetService::Stub> datasets;
  const std::unique_ptr<v1::FineTuneService::Stub> fine_tuning;
  const std::unique_ptr<v1::InferenceService::Stub> inference;
  const std::unique_ptr<v1::ModelService::Stub> models;
};

// The sender of a request.
auth::Caller CallerOf(const http::RequestHead& head);

// Metadata of a call for the client of a request (auth::Forward).
class ClientIdentity {
 public:
  // `head` must outlive this object.
  ClientIdentity(const http::RequestHead& head, std::string forward_secret)
      : head_(head), forward_secret_(std::move(forward_secret)) {}
  void AddTo(grpc::ClientContext& context) const;

 private:
  const http::RequestHead& head_;
  const std::string forward_secret_;
};

// A request in progress.
struct Incoming {
  std::shared_ptr<http::Exchange> exchange;
  ClientIdentity identity;
  std::shared_ptr<const void> alive;  // the gateway waits for its release
};

}  // namespace nibble::openai
