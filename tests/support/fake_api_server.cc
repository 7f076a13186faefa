#include "tests/support/fake_api_server.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "server/base/mutex.h"
#include "tests/support/certificates.h"
#include "tests/support/fake_api_objects.h"
#include "tests/support/temp_directory.h"

namespace nibble::testing {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using base::Json;
using Error = boost::system::error_code;
using Stream = beast::ssl_stream<beast::tcp_stream>;
using HttpRequest = http::request<http::string_body>;

auto Into(Error& error) { return asio::redirect_error(asio::use_awaitable, error); }

// Made once per process: each takes tens of milliseconds.
class Authorities {
 public:
  Authorities() {
    MakeAuthority(directory_ / "ca");
    MakeAuthority(directory_ / "other_ca");
  }
  std::string operator/(const std::string& name) const { return directory_ / name; }

 private:
  TempDirectory directory_;
};
const Authorities& TheAuthorities() {
  static const Authorities authorities;
  return authorities;
}

// The prefix of the files of a certificate for `names`.
std::string Certificate(const std::string& names) {
  static base::Mutex mutex;
  static std::map<std::string, std::string> made;
  base::MutexLock lock(mutex);
  std::string& prefix = made[names];
  if (prefix.empty()) {
    prefix = TheAuthorities() / ("server" + std::to_string(made.size()));
    MakeCertificate(prefix, TheAuthorities() / "ca", names);
  }
  return prefix;
}

RequestKind KindOf(const HttpRequest& request, const ApiTarget& target) {
  if (request.method() == http::verb::post) return RequestKind::kCreate;
  if (request.method() == http::verb::delete_) return RequestKind::kDelete;
  if (!target.name.empty()) return RequestKind::kGet;
  return target.query.contains("watch") ? RequestKind::kWatch : RequestKind::kList;
}

Json ParsedOrNull(const std::string& text) {
  auto json = base::ParseJson(text);
  return json.ok() ? *std::move(json) : Json();
}

}  // namespace

struct FakeApiServer::State {
  // A watch that is being answered. The server's thread only, except `raw` and `end`, which the mutex guards.
  struct LiveWatch {
    explicit LiveWatch(asio::io_context& io) : wake(io) {}
    asio::steady_timer wake;
    bool begun = false, woken = false, left = false;
    std::string raw;  // to be sent as it is
    std::optional<WatchEnd> end;
  };

  explicit State(const std::string& names);

  asio::awaitable<void> Accept();
  asio::awaitable<void> Serve(asio::ip::tcp::socket socket);
  // False: the connection must be closed.
  asio::awaitable<bool> Answer(Stream& stream, const HttpRequest& request);
  asio::awaitable<void> AwaitRelease();
  asio::awaitable<bool> AnswerFault(Stream& stream, const ApiFault& fault);
  asio::awaitable<void> AwaitLeaving(Stream& stream, LiveWatch& watch);
  asio::awaitable<void> SendEvents(Stream& stream, const ApiTarget& target, LiveWatch& watch);
  // Sends events until the watch ends, then closes the connection.
  asio::awaitable<void> AnswerWatch(Stream& stream, const ApiTarget& target, LiveWatch& watch);
  asio::awaitable<bool> Send(Stream& stream, const ObjectAnswer& answer, int retry_after_s = -1);
  ObjectAnswer Apply(RequestKind kind, const ApiTarget& target, const Json& body) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // The lines that a watch sends now, and how it ends afterwards.
  std::string Pending(LiveWatch& watch, const ApiTarget& target, std::uint64_t& version, std::optional<WatchEnd>& end);

  // Runs `task` on the server's thread and waits for it.
  void OnThread(const std::function<void()>& task);
  void WakeWatches();
  void CloseAll();

  TempDirectory directory;
  asio::io_context io{1};
  asio::ssl::context tls{asio::ssl::context::tls_server};
  asio::ip::tcp::acceptor acceptor{io, {asio::ip::make_address("127.0.0.1"), 0}};
  const std::string port = std::to_string(acceptor.local_endpoint().port());
  // Only the server's thread uses the next four.
  bool away = false;
  std::set<Stream*> streams;
  bool holds = false;
  std::deque<asio::steady_timer*> held;  // one for each held request; cancelled to answer it
  mutable base::Mutex mutex;
  FakeApiObjects objects ABSL_GUARDED_BY(mutex);
  std::set<LiveWatch*> watches ABSL_GUARDED_BY(mutex);
  std::map<RequestKind, std::deque<ApiFault>> faults ABSL_GUARDED_BY(mutex);
  std::vector<ApiServerRequest> requests ABSL_GUARDED_BY(mutex);
  std::string token ABSL_GUARDED_BY(mutex) = "secret-token";
  int num_connections ABSL_GUARDED_BY(mutex) = 0;
  std::thread thread;
};

FakeApiServer::State::State(const std::string& names) {
  tls.use_certificate_chain_file(Certificate(names) + ".crt");
  tls.use_private_key_file(Certificate(names) + ".key", asio::ssl::context::pem);
}

asio::awaitable<void> FakeApiServer::State::Accept() {
  for (;;) {
    Error error;
    auto socket = co_await acceptor.async_accept(Into(error));
    if (error) continue;
    if (!away) asio::co_spawn(io, Serve(std::move(socket)), asio::detached);
  }
}

asio::awaitable<void> FakeApiServer::State::Serve(asio::ip::tcp::socket socket) {
  Error error;
  socket.set_option(asio::ip::tcp::no_delay(true), error);
  Stream stream(std::move(socket), tls);
  streams.insert(&stream);
  co_await stream.async_handshake(asio::ssl::stream_base::server, Into(error));
  if (!error) {
    base::MutexLock lock(mutex);
    ++num_connections;
  }
  beast::flat_buffer buffer;
  while (!error) {
    HttpRequest request;
    co_await http::async_read(stream, buffer, request, Into(error));
    if (error) break;
    const bool keep = co_await Answer(stream, request);
    if (!keep) break;
  }
  streams.erase(&stream);
}

asio::awaitable<bool> FakeApiServer::State::Answer(Stream& stream, const HttpRequest& request) {
  const ApiTarget target = ParseTarget(std::string(request.target()));
  const RequestKind kind = KindOf(request, target);
  const Json body = ParsedOrNull(request.body());
  const std::string authorization(request[http::field::authorization]);
  std::optional<ApiFault> fault;
  ObjectAnswer answer;
  LiveWatch watch(io);
  {
    base::MutexLock lock(mutex);
    requests.push_back({kind, std::string(request.target()), authorization, body});
    auto& waiting = faults[kind];
    if (!waiting.empty()) {
      fault = waiting.front();
      waiting.pop_front();
    } else if (authorization != "Bearer " + token) {
      answer = {401, StatusObject(401, "Unauthorized", "Unauthorized")};
    } else if (kind == RequestKind::kWatch) {
      watches.insert(&watch);
    } else {
      answer = Apply(kind, target, body);
    }
  }
  if (holds && kind != RequestKind::kWatch) co_await AwaitRelease();
  if (fault.has_value()) co_return co_await AnswerFault(stream, *fault);
  if (kind == RequestKind::kWatch && answer.status == 200) {
    co_await AnswerWatch(stream, target, watch);
    co_return false;
  }
  co_return co_await Send(stream, answer);
}

asio::awaitable<void> FakeApiServer::State::AwaitRelease() {
  asio::steady_timer released(io, std::chrono::hours(1));
  held.push_back(&released);
  Error cancelled;
  co_await released.async_wait(Into(cancelled));
}

ObjectAnswer FakeApiServer::State::Apply(RequestKind kind, const ApiTarget& target, const Json& body) {
  switch (kind) {
    case RequestKind::kCreate: {
      ObjectAnswer answer = objects.Create(target, body);
      WakeWatches();
      return answer;
    }
    case RequestKind::kDelete: {
      ObjectAnswer answer = objects.Delete(target, body);
      WakeWatches();
      return answer;
    }
    case RequestKind::kGet: return objects.Get(target);
    case RequestKind::kList:
    case RequestKind::kWatch: break;
  }
  return objects.List(target);
}

asio::awaitable<bool> FakeApiServer::State::Send(Stream& stream, const ObjectAnswer& answer, int retry_after_s) {
  http::response<http::string_body> response(static_cast<http::status>(answer.status), 11);
  response.set(http::field::content_type, "application/json");
  if (retry_after_s >= 0) response.set(http::field::retry_after, std::to_string(retry_after_s));
  response.body() = base::Dump(answer.body);
  response.prepare_payload();
  Error error;
  co_await http::async_write(stream, response, Into(error));
  co_return !error;
}

asio::awaitable<bool> FakeApiServer::State::AnswerFault(Stream& stream, const ApiFault& fault) {
  Error error;
  if (fault.kind == ApiFault::kSilent) {
    char byte = 0;
    co_await stream.async_read_some(asio::buffer(&byte, 1), Into(error));  // until the client leaves
    co_return false;
  }
  if (fault.kind != ApiFault::kStatus) {
    const bool half = fault.kind == ApiFault::kHalfAnswer;
    const std::string text = std::string("HTTP/1.1 200 OK\r\nContent-Length: ") + (half ? "1000" : "7") +
                             "\r\nContent-Type: application/json\r\n\r\n<html>\n";
    co_await asio::async_write(stream, asio::buffer(text), Into(error));
    co_return !half && !error;
  }
  const std::string reason = fault.status == 410 ? "Expired" : fault.status == 429 ? "TooManyRequests" : "Scripted";
  const ObjectAnswer answer = {fault.status, StatusObject(fault.status, reason, "scripted by the test")};
  co_return co_await Send(stream, answer, fault.retry_after_s);
}

std::string FakeApiServer::State::Pending(LiveWatch& watch, const ApiTarget& target, std::uint64_t& version,
                                          std::optional<WatchEnd>& end) {
  base::MutexLock lock(mutex);
  end = watch.end;
  // Only a new watch can be too old.
  if (!std::exchange(watch.begun, true) && objects.HasExpired(version)) end = WatchEnd::kExpired;
  if (end == WatchEnd::kExpired) return FakeApiObjects::Expired();
  std::string lines = objects.EventsSince(target, version) + std::exchange(watch.raw, "");
  version = objects.version();
  if (end == WatchEnd::kCutInLine) lines += R"({"type": "MODIFIED", "object": {"kind": "Po)";
  return lines;
}

// Notices when the client closes the connection of a watch.
asio::awaitable<void> FakeApiServer::State::AwaitLeaving(Stream& stream, LiveWatch& watch) {
  char byte = 0;
  Error error;
  co_await stream.async_read_some(asio::buffer(&byte, 1), Into(error));
  watch.left = watch.woken = true;
  watch.wake.cancel();
}

asio::awaitable<void> FakeApiServer::State::SendEvents(Stream& stream, const ApiTarget& target, LiveWatch& watch) {
  Error error;
  http::response<http::empty_body> header(http::status::ok, 11);
  header.set(http::field::content_type, "application/json");
  header.chunked(true);
  http::response_serializer<http::empty_body> serializer(header);
  co_await http::async_write_header(stream, serializer, Into(error));
  const std::string timeout = target.Query("timeoutSeconds");
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::seconds(timeout.empty() ? 1800 : std::stoi(timeout));
  std::uint64_t version = std::stoull(target.Query("resourceVersion"));
  std::optional<WatchEnd> end;
  while (!error && !watch.left && !end.has_value()) {
    watch.woken = false;
    const std::string lines = Pending(watch, target, version, end);
    if (!lines.empty()) co_await asio::async_write(stream, http::make_chunk(asio::buffer(lines)), Into(error));
    if (!end.has_value() && std::chrono::steady_clock::now() >= until) end = WatchEnd::kClean;
    if (error || end.has_value() || watch.woken) continue;
    watch.wake.expires_at(until);
    Error cancelled;
    co_await watch.wake.async_wait(Into(cancelled));
  }
  if (!error && (end == WatchEnd::kClean || end == WatchEnd::kExpired))
    co_await asio::async_write(stream, http::make_chunk_last(), Into(error));
}

asio::awaitable<void> FakeApiServer::State::AnswerWatch(Stream& stream, const ApiTarget& target, LiveWatch& watch) {
  asio::co_spawn(io, AwaitLeaving(stream, watch), asio::detached);
  co_await SendEvents(stream, target, watch);
  {
    base::MutexLock lock(mutex);
    watches.erase(&watch);
  }
  beast::get_lowest_layer(stream).close();
  // AwaitLeaving refers to the stream and the watch, so both must live until it ends.
  while (!watch.left) {
    watch.wake.expires_after(std::chrono::hours(1));
    Error cancelled;
    co_await watch.wake.async_wait(Into(cancelled));
  }
}

void FakeApiServer::State::OnThread(const std::function<void()>& task) {
  std::promise<void> done;
  asio::post(io, [&] {
    task();
    done.set_value();
  });
  done.get_future().wait();
}

void FakeApiServer::State::WakeWatches() {
  asio::post(io, [this] {
    base::MutexLock lock(mutex);
    for (LiveWatch* watch : watches) {
      watch->woken = true;
      watch->wake.cancel();
    }
  });
}

void FakeApiServer::State::CloseAll() {
  for (Stream* stream : streams) beast::get_lowest_layer(*stream).close();
}

FakeApiServer::FakeApiServer(const std::string& names) : state_(std::make_unique<State>(names)) {
  WriteTokenFile("secret-token");
  asio::co_spawn(state_->io, state_->Accept(), asio::detached);
  state_->thread = std::thread([io = &state_->io] { io->run(); });
}

FakeApiServer::~FakeApiServer() {
  state_->io.stop();
  state_->thread.join();
}

kube::ClusterAccess FakeApiServer::access() const {
  return {.host = "127.0.0.1",
          .port = state_->port,
          .token_file = state_->directory / "token",
          .ca_file = TheAuthorities() / "ca.crt",
          .name_space = "ml"};
}

std::string FakeApiServer::OtherAuthority() { return TheAuthorities() / "other_ca.crt"; }

void FakeApiServer::AcceptToken(const std::string& token) {
  base::MutexLock lock(state_->mutex);
  state_->token = token;
}

void FakeApiServer::WriteTokenFile(const std::string& token) {
  // Renamed into place, as the kubelet does.
  std::ofstream(state_->directory / "token.new") << token << "\n";
  std::filesystem::rename(state_->directory / "token.new", state_->directory / "token");
}

void FakeApiServer::Put(Json object) {
  base::MutexLock lock(state_->mutex);
  state_->objects.Put(std::move(object));
  state_->WakeWatches();
}

bool FakeApiServer::Remove(const std::string& collection, const std::string& name) {
  const std::string api = collection == "jobs" ? "/apis/batch/v1" : "/api/v1";
  base::MutexLock lock(state_->mutex);
  const auto answer = state_->objects.Delete(ParseTarget(api + "/namespaces/ml/" + collection + "/" + name), Json());
  state_->WakeWatches();
  return answer.status == 200;
}

void FakeApiServer::Forget() {
  base::MutexLock lock(state_->mutex);
  state_->objects.Forget();
}

void FakeApiServer::Fail(int n, RequestKind kind, const ApiFault& fault) {
  base::MutexLock lock(state_->mutex);
  state_->faults[kind].insert(state_->faults[kind].end(), static_cast<std::size_t>(n), fault);
}

void FakeApiServer::Hold() {
  state_->OnThread([this] { state_->holds = true; });
}

void FakeApiServer::Release(int n) {
  state_->OnThread([this, n] {
    for (int i = 0; i < n && !state_->held.empty(); ++i) {
      state_->held.front()->cancel();
      state_->held.pop_front();
    }
  });
}

int FakeApiServer::num_held() {
  int count = 0;
  state_->OnThread([&] { count = static_cast<int>(state_->held.size()); });
  return count;
}

void FakeApiServer::ClearFaults() {
  base::MutexLock lock(state_->mutex);
  state_->faults.clear();
}

void FakeApiServer::EndWatches(WatchEnd how) {
  base::MutexLock lock(state_->mutex);
  for (State::LiveWatch* watch : state_->watches) watch->end = how;
  state_->WakeWatches();
}

void FakeApiServer::SendBookmark() {
  base::MutexLock lock(state_->mutex);
  for (State::LiveWatch* watch : state_->watches) watch->raw += state_->objects.Bookmark();
  state_->WakeWatches();
}

void FakeApiServer::SendOnWatches(const std::string& text) {
  base::MutexLock lock(state_->mutex);
  for (State::LiveWatch* watch : state_->watches) watch->raw += text;
  state_->WakeWatches();
}

void FakeApiServer::SetAway(bool away) {
  state_->OnThread([this, away] {
    state_->away = away;
    if (away) state_->CloseAll();
  });
  state_->WakeWatches();
}

void FakeApiServer::CutConnections() {
  state_->OnThread([this] { state_->CloseAll(); });
  state_->WakeWatches();
}

std::vector<ApiServerRequest> FakeApiServer::requests() const {
  base::MutexLock lock(state_->mutex);
  return state_->requests;
}

int FakeApiServer::CountOf(RequestKind kind) const {
  int count = 0;
  for (const ApiServerRequest& request : requests()) count += request.kind == kind ? 1 : 0;
  return count;
}

int FakeApiServer::num_connections() const {
  base::MutexLock lock(state_->mutex);
  return state_->num_connections;
}

int FakeApiServer::num_watches() const {
  base::MutexLock lock(state_->mutex);
  return static_cast<int>(state_->watches.size());
}

}  // namespace nibble::testing
