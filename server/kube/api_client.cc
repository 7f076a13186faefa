#include "server/kube/api_client.h"

#include <pthread.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/log.h"
#include "server/base/mutex.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"
#include "server/kube/connection.h"
#include "server/kube/name_lookup.h"

namespace nibble::kube {

namespace {

namespace asio = boost::asio;
using base::StrCat;

constexpr std::size_t kMaxIdle = 4;        // kept connections
constexpr std::size_t kMaxLine = 4 << 20;  // bytes of one event of a watch; etcd stores objects of at most 1.5 MiB
constexpr std::size_t kMaxShown = 500;     // bytes of an answer in a message
constexpr absl::Duration kOpen = absl::Seconds(30);        // until a watch's answer begins
constexpr absl::Duration kWatchGrace = absl::Seconds(30);  // after the time at which the server should end a watch

std::string TextOf(const base::Json& json, const char* name) {
  const auto found = json.is_object() ? json.find(name) : json.end();
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

absl::StatusCode CodeOf(int status, const std::string& reason) {
  switch (status) {
    case 401: return absl::StatusCode::kUnauthenticated;
    case 403: return absl::StatusCode::kPermissionDenied;
    case 404: return absl::StatusCode::kNotFound;
    case 409: return reason == "AlreadyExists" ? absl::StatusCode::kAlreadyExists : absl::StatusCode::kAborted;
    case 410: return absl::StatusCode::kOutOfRange;
    case 429: return absl::StatusCode::kResourceExhausted;
    default: break;
  }
  return status >= 400 && status < 500 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kUnavailable;
}

ApiAnswer AnswerOf(Connection& connection) {
  ApiAnswer answer;
  answer.status = connection.status();
  answer.phrase = connection.phrase();
  answer.retry_after = connection.RetryAfter();
  auto json = base::ParseJson(connection.body());
  if (json.ok()) {
    answer.json = *std::move(json);
  } else {
    answer.text = std::move(connection.body());
  }
  return answer;
}

}  // namespace

// Used on the client's thread only.
struct ApiClient::Call {
  explicit Call(asio::io_context& io) : looked_up(io) {}
  void Cancel() {
    cancelled = true;
    looked_up.cancel();
    if (connection != nullptr) connection->Close();
  }

  ApiWatch watch;  // empty for a request
  std::unique_ptr<Connection> connection;
  asio::steady_timer looked_up;  // cancelled when a name's look-up is done
  bool cancelled = false;
};

// Everything but `io` and `access` belongs to the client's thread.
struct ApiClient::State {
  explicit State(ClusterAccess given) : access(std::move(given)), guard(asio::make_work_guard(io)) {}

  void Run();
  void Stop();
  // Runs `task` on the client's thread. Without memory for the task, the program ends: destructors post tasks too.
  void Post(std::function<void()> task) noexcept {
    try {
      asio::post(io, std::move(task));
    } catch (...) {
      std::terminate();
    }
  }
  // If the status is OK, `call` has an open connection.
  asio::awaitable<absl::Status> Open(Call& call, Deadline deadline);
  asio::awaitable<absl::StatusOr<Endpoints>> LookUp(Call& call, Deadline deadline);
  asio::awaitable<absl::Status> Send(Call& call, const ApiRequest& request);
  asio::awaitable<absl::Status> ReadBody(Call& call);
  asio::awaitable<absl::Status> Exchange(Call& call, const ApiRequest& request, Deadline deadline);
  asio::awaitable<void> Answer(ApiRequest request, Done done, Deadline deadline);
  void StartWaiting();
  asio::awaitable<absl::Status> ReadEvents(Call& call, std::optional<absl::Duration>& retry_after);
  // Passes on the whole lines at the front of `text` and removes them.
  static absl::Status TakeEvents(const Call& call, std::string& text);
  asio::awaitable<void> ReadWatch(std::shared_ptr<Call> call);

  const ClusterAccess access;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard;
  std::vector<std::unique_ptr<Connection>> idle;  // the last one was used last
  std::set<Call*> calls;
  struct Waiting {
    ApiRequest request;
    Done done;
    Deadline deadline;
  };
  std::deque<Waiting> waiting;   // requests above kMaxRequests, in order
  std::size_t num_requests = 0;  // in progress
  std::set<std::shared_ptr<asio::steady_timer>> timers;
  bool stopped = false;
  std::thread thread;
};

void ApiClient::State::Run() {
  pthread_setname_np(pthread_self(), "nibble-kube");
  while (!io.stopped()) {
    try {
      io.run();
    } catch (const std::exception& error) {  // out of memory, or a callback that throws
      base::LogError("a callback of the Kubernetes client failed", {{"why", error.what()}});
    }
  }
}

void ApiClient::State::Stop() {
  stopped = true;
  for (Call* call : calls) call->Cancel();
  for (const auto& timer : timers) timer->cancel();
  idle.clear();
  guard.reset();
  for (Waiting& one : std::exchange(waiting, {})) one.done(absl::CancelledError("the request was cancelled"));
}

void ApiClient::State::StartWaiting() {
  while (num_requests < kMaxRequests && !waiting.empty()) {
    Waiting next = std::move(waiting.front());
    waiting.pop_front();
    ++num_requests;
    asio::co_spawn(io, Answer(std::move(next.request), std::move(next.done), next.deadline), asio::detached);
  }
}

asio::awaitable<absl::StatusOr<Endpoints>> ApiClient::State::LookUp(Call& call, Deadline deadline) {
  boost::system::error_code error;
  const asio::ip::address address = asio::ip::make_address(access.host, error);
  if (!error) co_return Endpoints{{address, static_cast<asio::ip::port_type>(std::atoi(access.port.c_str()))}};
  call.looked_up.expires_at(deadline.at);
  const NameLookup lookup(io, access.host, access.port, [&call] { call.looked_up.cancel(); });
  co_await call.looked_up.async_wait(asio::redirect_error(asio::use_awaitable, error));
  if (call.cancelled) co_return absl::CancelledError("the request was cancelled");
  // Without an error, the timer has expired before the look-up cancelled it.
  if (!error) co_return absl::DeadlineExceededError(StrCat("the look-up of the host ", access.host, " takes too long"));
  co_return lookup.Result();
}

asio::awaitable<absl::Status> ApiClient::State::Open(Call& call, Deadline deadline) {
  if (call.cancelled) co_return absl::CancelledError("the request was cancelled");
  const auto authority = ReadAuthority(access);
  if (!authority.ok()) co_return authority.status();
  const auto endpoints = co_await LookUp(call, deadline);
  if (!endpoints.ok()) co_return endpoints.status();
  auto made = Connection::Make(io, access, *authority);
  if (!made.ok()) co_return made.status();
  call.connection = *std::move(made);
  call.connection->Expire(deadline);
  co_return co_await call.connection->Open(*endpoints);
}

asio::awaitable<absl::Status> ApiClient::State::Send(Call& call, const ApiRequest& request) {
  const auto token = ReadToken(access);
  if (!token.ok()) co_return token.status();
  absl::Status status = co_await call.connection->Send(request, *token);
  if (status.ok()) status = co_await call.connection->ReadHeader();
  co_return status;
}

asio::awaitable<absl::Status> ApiClient::State::ReadBody(Call& call) {
  absl::Status status;
  while (status.ok() && !call.connection->done()) {
    status = co_await call.connection->ReadSome();
    if (status.ok() && call.connection->body().size() > Connection::kMaxBody)
      status = absl::ResourceExhaustedError("the API server sends an answer above 16 MiB");
  }
  co_return status;
}

asio::awaitable<absl::Status> ApiClient::State::Exchange(Call& call, const ApiRequest& request, Deadline deadline) {
  if (std::chrono::steady_clock::now() >= deadline.at) {
    co_return absl::DeadlineExceededError(
        StrCat("a request waited ", absl::FormatDuration(deadline.timeout), " for others to the API server"));
  }
  absl::Status status;
  const bool kept = !idle.empty();
  if (kept) {
    call.connection = std::move(idle.back());
    idle.pop_back();
    call.connection->Expire(deadline);
    status = co_await Send(call, request);
    if (!absl::IsUnavailable(status) || !(request.repeatable || request.method == Method::kGet)) {
      if (status.ok()) status = co_await ReadBody(call);
      co_return status;
    }
    idle.clear();  // the server probably closed them all
  }
  status = co_await Open(call, deadline);
  if (status.ok()) status = co_await Send(call, request);
  if (status.ok()) status = co_await ReadBody(call);
  co_return status;
}

asio::awaitable<void> ApiClient::State::Answer(ApiRequest request, Done done, Deadline deadline) {
  absl::StatusOr<ApiAnswer> answer;
  {
    Call call(io);
    calls.insert(&call);
    absl::Status status;
    try {
      // Without a token, do not even connect.
      status = ReadToken(access).status();
      if (status.ok()) status = co_await Exchange(call, request, deadline);
      if (call.cancelled) status = absl::CancelledError("the request was cancelled");
      if (status.ok()) {
        answer = AnswerOf(*call.connection);
      } else {
        answer = status;
      }
    } catch (const std::exception& error) {
      answer = absl::UnavailableError(StrCat("cannot send a request to the API server: ", error.what()));
    }
    calls.erase(&call);
    const bool keep = answer.ok() && call.connection->keep_alive() && idle.size() < kMaxIdle && !stopped;
    if (keep) idle.push_back(std::move(call.connection));
  }
  --num_requests;
  // StartWaiting is posted, not called: requests that fail at once would nest as deep as the queue is long.
  if (!waiting.empty()) Post([this] { StartWaiting(); });
  done(std::move(answer));
}

absl::Status ApiClient::State::TakeEvents(const Call& call, std::string& text) {
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    auto event = base::ParseJson(std::string_view(text).substr(begin, end - begin));
    const std::string type = event.ok() ? TextOf(*event, "type") : "";
    if (type.empty() || !event->contains("object")) return absl::InternalError("a watch's event is malformed");
    call.watch.on_event(type, std::move((*event)["object"]));
    if (call.cancelled) return absl::CancelledError("the watch was cancelled");
  }
  text.erase(0, begin);
  if (text.size() <= kMaxLine) return absl::OkStatus();
  return absl::InternalError(StrCat("a watch's event is longer than ", kMaxLine, " bytes"));
}

asio::awaitable<absl::Status> ApiClient::State::ReadEvents(Call& call, std::optional<absl::Duration>& retry_after) {
  const ApiWatch& watch = call.watch;
  ApiRequest request;
  request.target = StrCat(watch.target, watch.target.find('?') == std::string::npos ? "?" : "&",
                          "watch=1&allowWatchBookmarks=true&resourceVersion=", watch.resource_version,
                          "&timeoutSeconds=", absl::ToInt64Seconds(watch.timeout));
  absl::Status status = ReadToken(access).status();
  if (status.ok()) status = co_await Open(call, Deadline(kOpen));
  if (status.ok()) status = co_await Send(call, request);
  if (!status.ok()) co_return status;
  if (call.connection->status() != 200) {
    status = co_await ReadBody(call);
    if (!status.ok()) co_return status;
    const ApiAnswer answer = AnswerOf(*call.connection);
    retry_after = answer.retry_after;
    status = StatusOf(answer);
    co_return status.ok() ? absl::InternalError(StrCat("a watch was answered with ", answer.status)) : status;
  }
  watch.on_open();
  call.connection->Expire(Deadline(watch.timeout + kWatchGrace));
  while (status.ok() && !call.cancelled && !call.connection->done()) {
    status = co_await call.connection->ReadSome();
    if (status.ok() && !call.cancelled) status = TakeEvents(call, call.connection->body());
  }
  if (status.ok() && !call.connection->body().empty()) status = absl::UnavailableError("a watch ended within an event");
  co_return status;
}

asio::awaitable<void> ApiClient::State::ReadWatch(std::shared_ptr<Call> call) {
  if (call->cancelled || stopped) co_return;
  calls.insert(call.get());
  absl::Status status;
  std::optional<absl::Duration> retry_after;
  try {
    status = co_await ReadEvents(*call, retry_after);
  } catch (const std::exception& error) {
    status = absl::UnavailableError(StrCat("a watch failed: ", error.what()));
  }
  calls.erase(call.get());
  call->connection.reset();
  if (!call->cancelled) call->watch.on_end(status, retry_after);
}

ApiClient::ApiClient(ClusterAccess access) : state_(std::make_unique<State>(std::move(access))) {
  state_->thread = std::thread([state = state_.get()] { state->Run(); });
}

ApiClient::~ApiClient() {
  state_->Post([state = state_.get()] { state->Stop(); });
  state_->thread.join();
}

const ClusterAccess& ApiClient::access() const { return state_->access; }

void ApiClient::Request(ApiRequest request, Done done) {
  state_->Post([state = state_.get(), request = std::move(request), done = std::move(done)]() mutable {
    if (state->stopped) return;
    const Deadline deadline(request.timeout);
    state->waiting.push_back({std::move(request), std::move(done), deadline});
    state->StartWaiting();
  });
}

std::unique_ptr<ApiClient::Watch> ApiClient::StartWatch(ApiWatch watch) {
  auto call = std::make_shared<Call>(state_->io);
  call->watch = std::move(watch);
  state_->Post([state = state_.get(), call] { asio::co_spawn(state->io, state->ReadWatch(call), asio::detached); });
  return std::unique_ptr<Watch>(new Watch(*this, std::move(call)));
}

void ApiClient::RunAfter(absl::Duration delay, std::function<void()> task) {
  state_->Post([state = state_.get(), delay, task = std::move(task)]() mutable {
    if (state->stopped) return;
    auto timer = std::make_shared<asio::steady_timer>(state->io, absl::ToChronoNanoseconds(delay));
    state->timers.insert(timer);
    timer->async_wait([state, timer, task = std::move(task)](const boost::system::error_code& error) {
      state->timers.erase(timer);
      if (!error && !state->stopped) task();
    });
  });
}

void ApiClient::RunAndWait(const std::function<void()>& task) {
  if (std::this_thread::get_id() == state_->thread.get_id()) return task();
  base::Mutex mutex;
  base::Condition ended;
  bool is_done = false;
  state_->Post([&] {
    task();
    base::MutexLock lock(mutex);
    is_done = true;
    ended.NotifyOne();
  });
  base::MutexLock lock(mutex);
  ended.Wait(lock, [&] { return is_done; });
}

ApiClient::Watch::Watch(ApiClient& client, std::shared_ptr<Call> call) : client_(client), call_(std::move(call)) {}

ApiClient::Watch::~Watch() {
  client_.RunAndWait([this] { call_->Cancel(); });
}

absl::Status StatusOf(const ApiAnswer& answer) {
  if (answer.status >= 200 && answer.status < 300) return absl::OkStatus();
  const std::string reason = TextOf(answer.json, "reason");
  std::string why = TextOf(answer.json, "message");
  if (why.empty()) why = answer.text;
  why.resize(base::WholeCharacters(why, std::min(why.size(), kMaxShown)));
  std::string message = StrCat("the API server answered ", answer.status, " ", answer.phrase);
  if (!reason.empty()) message += StrCat(" (", reason, ")");
  if (!why.empty()) message += StrCat(": ", why);
  const absl::Status status(CodeOf(answer.status, reason), message);
  return reason.empty() ? status : base::WithReason(status, reason);
}

}  // namespace nibble::kube
