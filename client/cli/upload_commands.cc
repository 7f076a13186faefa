#include <CLI/CLI.hpp>

#include "client/cli/app.h"
#include "client/cli/command.h"
#include "client/cli/message_json.h"
#include "client/cli/render.h"
#include "server/base/human_bytes.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::cli {
namespace {

using v1::UploadService;

base::Json UploadJson(const v1::Upload& upload) {
  base::Json json;
  json["id"] = upload.upload_id();
  json["kind"] = Lower(upload.kind());
  json["state"] = Lower(upload.state());
  json["name"] = upload.name();
  json["bytes"] = upload.committed_bytes();
  json["files"] = upload.num_files();
  json["principal"] = upload.principal();
  return json;
}

absl::Status List(Session& session) {
  base::Json list = base::Json::array();
  Table table({"ID", "KIND", "NAME", "STATE", "ARRIVED", "PRINCIPAL"});
  const v1::ListUploadsRequest all;
  NIBBLE_RETURN_IF_ERROR(ForEachPage(session, &UploadService::Stub::ListUploads, all, [&](const auto& page) {
    for (const v1::Upload& upload : page.uploads()) {
      list.push_back(UploadJson(upload));
      table.Add({upload.upload_id(), Lower(upload.kind()), upload.name(), Lower(upload.state()),
                 base::HumanBytes(upload.committed_bytes()), upload.principal()});
    }
    return true;
  }));
  PrintList(session, "uploads", std::move(list), table);
  return absl::OkStatus();
}

absl::Status Cancel(Session& session, const std::string& id) {
  NIBBLE_RETURN_IF_ERROR(CheckText("id", id));
  v1::CancelUploadRequest request;
  request.set_upload_id(id);
  NIBBLE_RETURN_IF_ERROR(session.client().Call(&UploadService::Stub::CancelUpload, request).status());
  if (session.json) {
    session.Print({{"id", id}, {"cancelled", true}});
  } else {
    session.out() << "cancelled " << id << '\n';
  }
  return absl::OkStatus();
}

}  // namespace

void AddUploadCommands(CLI::App& app, Session& session) {
  CLI::App& uploads =
      *app.add_subcommand("uploads", "List and cancel uploads that are in progress or not yet imported");
  uploads.require_subcommand(1);
  AddCommand(uploads, session, "list", "List your uploads; an admin without a tenant sees all uploads", &List);
  AddCommandOn(uploads, session, "cancel", "Cancel an upload and delete the received data", "ID", "Upload", &Cancel);
}

}  // namespace nibble::cli
