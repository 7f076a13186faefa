// Completes a text and prints each piece as soon as it arrives.
//   example_generate_stream HOST:PORT MODEL PROMPT
#include <iostream>
#include <string>

#include "client/client.h"

namespace {

namespace v1 = nibble::v1;

absl::Status Run(const std::string& server, const std::string& model, const std::string& prompt) {
  auto client = nibble::client::Client::Connect(server, {});
  v1::GenerateRequest request;
  request.set_model(model);
  request.set_text(prompt);
  request.mutable_stopping()->set_max_tokens(16);
  absl::Status status = client.GenerateStream(request, /*chat=*/false, [](const v1::GenerateReply& reply) {
    if (reply.has_delta()) std::cout << reply.delta().text() << std::flush;
    if (reply.has_usage()) std::cerr << reply.usage().completion_tokens() << " tokens\n";
    // An error cancels the request, so that the server does not generate for a reader that is gone.
    return std::cout ? absl::OkStatus() : absl::CancelledError("the output was closed");
  });
  std::cout << '\n';
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: example_generate_stream HOST:PORT MODEL PROMPT\n";
    return 2;
  }
  const absl::Status status = Run(argv[1], argv[2], argv[3]);
  if (!status.ok()) std::cerr << status << '\n';
  return status.ok() ? 0 : 1;
}
