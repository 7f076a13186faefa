#pragma once
#include "google/longrunning/operations.grpc.pb.h"
#include "server/operations/operation_table.h"
#include "server/rpc/call.h"

namespace nibble::rpc {

// Thread-safe.
class OperationsService : public google::longrunning::Operations::CallbackService {
 public:
  OperationsService(CallEnvironment& environment, operations::OperationTable& operations)
      : environment_(environment), operations_(operations) {}

  grpc::ServerUnaryReactor* ListOperations(grpc::CallbackServerContext*,
                                           const google::longrunning::ListOperationsRequest*,
                                           google::longrunning::ListOperationsResponse*) override;
  grpc::ServerUnaryReactor* GetOperation(grpc::CallbackServerContext*, const google::longrunning::GetOperationRequest*,
                                         google::longrunning::Operation*) override;
  grpc::ServerUnaryReactor* DeleteOperation(grpc::CallbackServerContext*,
                                            const google::longrunning::DeleteOperationRequest*,
                                            google::protobuf::Empty*) override;
  grpc::ServerUnaryReactor* CancelOperation(grpc::CallbackServerContext*,
                                            const google::longrunning::CancelOperationRequest*,
                                            google::protobuf::Empty*) override;
  // Answers when the operation has ended. Otherwise answers with its current state after the timeout, or shortly before
  // the call's deadline.
  grpc::ServerUnaryReactor* WaitOperation(grpc::CallbackServerContext*,
                                          const google::longrunning::WaitOperationRequest*,
                                          google::longrunning::Operation*) override;

 private:
  CallEnvironment& environment_;
  operations::OperationTable& operations_;
};

}  // namespace nibble::rpc
