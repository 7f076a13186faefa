#pragma once
#include <functional>
#include <memory>

#include "nibble/v1/server_service.pb.h"
#include "server/rpc/stream_reactor.h"

namespace nibble::rpc {

// Sends the result of `measure` now and after every interval, until the client or the server ends the stream. A slow
// reader misses some messages. Ends the stream with InvalidArgument if the interval is below 100 ms or above 1 h.
void WatchLoad(std::shared_ptr<StreamReactor<v1::ServerLoad>> stream, const v1::WatchLoadRequest& request,
               std::function<v1::ServerLoad()> measure);

}  // namespace nibble::rpc
