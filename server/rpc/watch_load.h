#pragma once
#include <functional>
#include <memory>

#include "nibble/v1/server_service.pb.h"
#include "server/rpc/stream_reactor.h"

namespace nibble::rpc {

// Sends what `measure` says now and every interval, until the client or the server ends it. A reader that is behind misses
// some: only the newest is of use. InvalidArgument below 100 ms.
void WatchLoad(std::shared_ptr<StreamReactor<v1::ServerLoad>> stream, const v1::WatchLoadRequest& request,
               std::function<v1::ServerLoad()> measure);

}  // namespace nibble::rpc
