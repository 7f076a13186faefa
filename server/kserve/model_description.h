// A model as metadata and configuration of the protocol.
#pragma once
#include <string>

#include "inference/grpc_service.pb.h"
#include "nibble/v1/model_service.pb.h"

namespace nibble::kserve {

inference::ModelMetadataResponse ToMetadata(const v1::Model& model);
inference::ModelConfig ToConfig(const v1::Model& model);
inference::RepositoryIndexResponse::ModelIndex ToIndex(const v1::Model& model);

}  // namespace nibble::kserve
