// Precompiled for code that uses gRPC and our protos (server/rpc, the client): std.h, gRPC and the generated headers.
#pragma once

#include <grpcpp/grpcpp.h>

#include "google/longrunning/operations.grpc.pb.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/time_util.h"
#include "google/rpc/error_details.pb.h"
#include "nibble/v1/dataset_service.grpc.pb.h"
#include "nibble/v1/fine_tune_service.grpc.pb.h"
#include "nibble/v1/inference_service.grpc.pb.h"
#include "nibble/v1/model_service.grpc.pb.h"
#include "nibble/v1/server_service.grpc.pb.h"
#include "nibble/v1/upload_service.grpc.pb.h"
#include "std.h"
