#include "server/kserve/inner_calls.h"

#include <map>

#include "absl/strings/cord.h"
#include "google/rpc/error_details.pb.h"
#include "server/auth/auth_processor.h"
#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::kserve {

namespace {

using base::StrCat;

constexpr std::string_view kUseStream = ": use GenerateStream";  // ends an error of nibble.v1's Generate

// Details that rpc::ToRpcStatus makes again from the reason and its metadata.
bool IsMadeAgain(const google::protobuf::Any& detail) {
  return detail.Is<google::rpc::ErrorInfo>() || detail.Is<google::rpc::BadRequest>() ||
         detail.Is<google::rpc::ResourceInfo>() || detail.Is<google::rpc::QuotaFailure>() ||
         detail.Is<google::rpc::PreconditionFailure>() || detail.Is<google::rpc::RetryInfo>();
}

// Renames the field that the message begins with, and the method that it names.
std::string Rename(std::string message, std::string_view sampling) {
  if (message.ends_with(kUseStream)) {
    message.resize(message.size() - kUseStream.size());
    message += ": use ModelStreamInfer with the tensor stream";
  }
  const std::size_t colon = message.find(": ");
  if (colon == std::string::npos) return message;
  const std::string field = message.substr(0, colon);
  return ClientName(field, sampling) + message.substr(colon);
}

}  // namespace

ClientIdentity::ClientIdentity(const rpc::Call& call, const grpc::CallbackServerContext& context)
    : caller_(auth::CallerOf(context)), request_id_(call.request_id()), deadline_(context.deadline()) {
  if (auth::Authority* authority = call.environment().authority; authority != nullptr) {
    authority->Resolve(caller_);
    forward_secret_ = authority->forward_secret();
  }
}

void ClientIdentity::AddTo(grpc::ClientContext& context) const {
  auth::Forward(caller_, request_id_, forward_secret_, context);
  if (deadline_ != std::chrono::system_clock::time_point::max()) context.set_deadline(deadline_);
}

absl::Status FromInner(const google::rpc::Status& details, std::string_view sampling) {
  absl::Status out(static_cast<absl::StatusCode>(details.code()), Rename(details.message(), sampling));
  for (const auto& detail : details.details()) {
    google::rpc::ErrorInfo info;
    if (detail.UnpackTo(&info)) {
      std::map<std::string, std::string> metadata(info.metadata().begin(), info.metadata().end());
      if (const auto field = metadata.find("field"); field != metadata.end())
        field->second = ClientName(field->second, sampling);
      out = base::WithReason(out, info.reason(), metadata);
    } else if (!IsMadeAgain(detail)) {
      out.SetPayload(detail.type_url(), absl::Cord(detail.value()));
    }
  }
  return out;
}

absl::Status FromInner(const grpc::Status& status, std::string_view sampling) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details()) || details.code() == 0) details.Clear();
  details.set_code(status.error_code());
  details.set_message(status.error_message());
  return FromInner(details, sampling);
}

}  // namespace nibble::kserve
