// The gRPC stubs of a Client; private to the client's .cc files.
#pragma once
#include <memory>

#include "client/client.h"

namespace nibble::client {

struct Client::Stubs {
  std::unique_ptr<v1::DatasetService::Stub> datasets;
  std::unique_ptr<v1::FineTuneService::Stub> jobs;
  std::unique_ptr<v1::ModelService::Stub> models;
  std::unique_ptr<v1::InferenceService::Stub> inference;
  std::unique_ptr<v1::ServerService::Stub> server;
  std::unique_ptr<v1::UploadService::Stub> uploads;
  std::unique_ptr<google::longrunning::Operations::Stub> operations;
  std::unique_ptr<grpc::health::v1::Health::Stub> health;
};

}  // namespace nibble::client
