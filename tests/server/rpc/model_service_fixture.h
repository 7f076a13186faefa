// Uploads, imports, converts and exports models over the wire, for tests of the model service.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>

#include "server/base/sha256.h"
#include "tests/server/rpc/app_fixture.h"

namespace nibble {

using testing::HasSubstr;
using testing_support::AppTest;
using testing_support::FieldOf;
using testing_support::ReasonOf;

namespace longrunning = google::longrunning;

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ModelServiceTest : public AppTest {
 protected:
  using Files = std::map<std::string, std::string>;
  static Files ModelFiles() {
    Files files;
    for (const auto& entry :
         std::filesystem::directory_iterator(NIBBLE_SOURCE_DIR "/tests/golden/model/hf_tied_bf16")) {
      files[entry.path().filename()] = ReadFile(entry.path());
    }
    return files;
  }
  // Uploads the files. `edit` may change each message before it is sent; a message for which it returns false is not
  // sent.
  grpc::Status Upload(const Files& files, v1::UploadModelResponse* response,
                      const std::function<bool(v1::UploadModelRequest&)>& edit = {}) {
    grpc::ClientContext context;
    auto writer = models_->UploadModel(&context, response);
    const auto send = [&](v1::UploadModelRequest message) {
      if (!edit || edit(message)) writer->Write(message);
    };
    v1::UploadModelRequest message;  // a oneof: each field that is set replaces the one before
    message.mutable_header()->set_name("test");
    send(message);
    base::Sha256 digest;
    for (const auto& [name, bytes] : files) {
      message.mutable_file()->set_path(name);
      message.mutable_file()->set_size_bytes(static_cast<std::int64_t>(bytes.size()));
      send(message);
      for (std::size_t at = 0; at < bytes.size(); at += 1 << 20) {
        message.set_chunk(bytes.substr(at, 1 << 20));
        send(message);
      }
      digest.Update(bytes);
    }
    message.mutable_finish()->set_sha256(digest.HexDigest());
    send(message);
    writer->WritesDone();
    return writer->Finish();
  }
  grpc::Status StartImport(const v1::ImportModelRequest& request, longrunning::Operation* operation) {
    grpc::ClientContext context;
    return models_->ImportModel(&context, request, operation);
  }
  // Imports, and returns the finished operation. Convert, below, also waits for the end of its operation.
  longrunning::Operation Imported(const v1::ImportModelRequest& request) {
    longrunning::Operation operation;
    const auto status = StartImport(request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return status.ok() ? Wait(operation) : operation;
  }
  // Exports and downloads the files; their number and digests must be those that were announced.
  Files Export(const v1::ExportModelRequest& request) {
    Files files;
    longrunning::Operation operation;
    const auto status = Call(models_, &v1::ModelService::Stub::ExportModel, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (!status.ok()) return files;
    const auto done = Wait(operation);
    v1::ExportModelResponse exported;
    EXPECT_TRUE(done.has_response() && done.response().UnpackTo(&exported)) << done.error().message();
    v1::DownloadArtifactRequest download;
    download.set_artifact_id(exported.artifact_id());
    grpc::ClientContext context;
    auto reader = models_->DownloadArtifact(&context, download);
    std::string name;
    base::Sha256 digest;
    bool finished = false;
    for (v1::DownloadArtifactResponse message; reader->Read(&message);) {
      if (message.has_file()) name = message.file().path();
      if (message.has_chunk()) {
        files[name] += message.chunk();
        digest.Update(message.chunk());
      }
      if (message.has_finish()) {
        finished = true;
        EXPECT_EQ(message.finish().sha256(), digest.HexDigest());
      }
    }
    EXPECT_TRUE(reader->Finish().ok());
    EXPECT_TRUE(finished);
    EXPECT_EQ(files.size(), static_cast<std::size_t>(exported.files_size()));
    for (const auto& file : exported.files())
      EXPECT_EQ(base::Sha256Hex(files[file.path()]), file.sha256()) << file.path();
    return files;
  }
  v1::Model Get(const std::string& name) {
    v1::GetModelRequest request;
    request.set_name(name);
    v1::Model model;
    grpc::ClientContext context;
    const auto status = models_->GetModel(&context, request, &model);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return model;
  }
  longrunning::Operation Convert(const std::string& from, const std::string& name, v1::ModelFormat format) {
    v1::ConvertModelRequest request;
    request.set_model(from);
    request.set_name(name);
    request.set_target(format);
    longrunning::Operation operation;
    grpc::ClientContext context;
    const auto status = models_->ConvertModel(&context, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return status.ok() ? Wait(operation) : operation;
  }
  grpc::Status Verify(const std::string& name, v1::VerifyModelResponse* response) {
    v1::VerifyModelRequest request;
    request.set_name(name);
    return Call(models_, &v1::ModelService::Stub::VerifyModel, request, response);
  }
};

}  // namespace nibble
