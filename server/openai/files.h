// The endpoints /v1/files except the upload. A file is a dataset, whose name is its id.
#pragma once
#include <memory>
#include <string>

#include "nibble/v1/dataset_service.pb.h"
#include "server/base/json.h"
#include "server/openai/inner_calls.h"

namespace nibble::openai {

// The purpose of every file.
inline constexpr char kFilePurpose[] = "fine-tune";

base::Json FileJson(const v1::Dataset& dataset);

// The stubs must outlive the calls; errors of the request are the answer.
void ListFiles(std::shared_ptr<Incoming> incoming, const Stubs& stubs);
void GetFile(std::shared_ptr<Incoming> incoming, const std::string& id, const Stubs& stubs);
void GetFileContent(std::shared_ptr<Incoming> incoming, const std::string& id, const Stubs& stubs);
void DeleteFile(std::shared_ptr<Incoming> incoming, const std::string& id, const Stubs& stubs);

}  // namespace nibble::openai
