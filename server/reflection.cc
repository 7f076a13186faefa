#include "server/reflection.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>

#include <memory>
#include <vector>

namespace nibble {

namespace {

class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins, [](const auto& plugin) { return plugin->name() == "proto_server_reflection"; });
  }
};

}  // namespace

void SetReflection(grpc::ServerBuilder& builder, bool on) {
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  if (!on) builder.SetOption(std::make_unique<WithoutReflection>());
}

}  // namespace nibble
