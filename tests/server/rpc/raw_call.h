#pragma once
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace nibble::testing_support {

// The answer to a call: its status, and the bytes of all messages read, one after the other.
struct RawAnswer {
  grpc::Status status;
  std::string bytes;
};

struct RawCall {
  std::string method;  // "nibble.v1.ModelService/ListModels"
  std::string request = {};
  std::multimap<std::string, std::string> metadata = {};
  int max_reads = 2;  // after so many messages the call is cancelled, because a watch does not end
  std::chrono::seconds timeout = std::chrono::seconds(20);
};

// Calls any method by its name, with one message and without a generated stub.
inline RawAnswer Ask(const std::shared_ptr<grpc::Channel>& channel, const RawCall& asked) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + asked.timeout);
  for (const auto& [key, value] : asked.metadata) context.AddMetadata(key, value);
  grpc::CompletionQueue queue;
  const auto next = [&] {
    void* tag;
    bool ok = false;
    queue.Next(&tag, &ok);
    return ok;
  };
  auto call = stub.PrepareCall(&context, "/" + asked.method, &queue);
  call->StartCall(nullptr);
  next();
  // A buffer with one empty slice is an empty message; a buffer without a slice would be no message.
  const grpc::Slice slice(asked.request);
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  next();
  call->WritesDone(nullptr);
  next();
  RawAnswer answer;
  bool more = true;
  for (int i = 0; more && i < asked.max_reads; ++i) {
    grpc::ByteBuffer buffer;
    call->Read(&buffer, nullptr);
    more = next();
    std::vector<grpc::Slice> slices;
    if (!more || !buffer.Dump(&slices).ok()) continue;
    for (const auto& part : slices) answer.bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  if (more) context.TryCancel();
  call->Finish(&answer.status, nullptr);
  next();
  return answer;
}

}  // namespace nibble::testing_support
