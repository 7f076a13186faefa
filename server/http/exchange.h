// A request over HTTP and its answer, for the listener of other protocols (exchange_server.h).
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::http {

// Header fields of an answer, in order.
using Fields = std::vector<std::pair<std::string, std::string>>;

struct Reply {
  unsigned status = 200;
  Fields fields{};     // besides Content-Length, Connection and Date
  std::string body{};  // with its Content-Type in `fields`
};

struct RequestHead {
  std::string method;                                           // "POST"
  std::string path;                                             // decoded, without the query
  std::string query;                                            // without "?", not decoded
  std::multimap<std::string, std::string, std::less<>> fields;  // names in lower case
  std::string peer;                                             // "ipv4:127.0.0.1:1234", as gRPC writes it
  std::vector<std::string> certificate_names;  // of the client's verified certificate: "dns:example.org"
  std::string request_id;                      // set by the handler's Admit()
  std::string fairness_key;                    // set by Admit(): whose turn the request takes among the others
  Fields answer_fields;                        // set by Admit(); added to every answer to this request
  // Set by Admit(): the handler takes the body in pieces, at most this many bytes. nullopt: as one string.
  std::optional<std::size_t> streamed_body_bytes;

  // The value of a field that the request has once; "" if it has none or several.
  std::string Field(std::string_view name) const {
    const auto [begin, end] = fields.equal_range(name);
    return begin != end && std::next(begin) == end ? begin->second : "";
  }
};

// One request whose body has been read, or will be streamed. Give it either a whole answer, or a stream: Stream(),
// Write() any number of times, then End(). Thread-safe; the functions never block. After the client has gone they have
// no effect.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const RequestHead& head() const = 0;
  // May be called once. "" if the body is streamed.
  virtual std::string TakeBody() = 0;
  // The next piece of a streamed body, which may be empty; `last`: the body ends with it. Called on the server's
  // thread.
  using OnPiece = std::function<void(std::string bytes, bool last)>;
  // Asks for the next piece. The client's bytes are not read before that. Call it again only after on_piece, and not
  // after the last piece. If the client goes, or its body is malformed, too large or too slow, on_gone of Watch() is
  // called instead. An answer before the last piece closes the connection.
  virtual void ReadBody(OnPiece on_piece) = 0;

  virtual void Answer(Reply reply) = 0;

  // The answer will be a stream with these header fields. They are sent with the first Write(), or after a silence of
  // ExchangeLimits::silence together with `comment`, which then repeats after each such silence.
  virtual void Stream(Fields fields, std::string comment) = 0;
  // False: enough bytes wait for the client; call Write() again after OnSpace's callback. A single call may pass any
  // number of bytes.
  virtual bool Write(std::string_view bytes) = 0;
  virtual void End() = 0;
  // Ends a stream with an error: `reply` if nothing has been sent yet, otherwise `tail` as the last bytes. nullopt:
  // cuts the connection, so that the client notices that the answer is not whole.
  virtual void Fail(Reply reply, std::optional<std::string_view> tail) = 0;

  // Callbacks on the server's thread. `on_space`: the client has taken the bytes that waited. `on_gone`: the client has
  // closed the connection or reads too slowly; called at most once, at once if it is gone already. Both are released
  // with the end of the answer.
  virtual void Watch(std::function<void()> on_space, std::function<void()> on_gone) = 0;
};

// Runs on the server's thread and must not block.
class ExchangeHandler {
 public:
  virtual ~ExchangeHandler() = default;
  // Called before the body is read, even if it is too large. A reply refuses the request and closes the connection.
  virtual std::optional<Reply> Admit(RequestHead& head) = 0;
  virtual void Handle(const std::shared_ptr<Exchange>& exchange) = 0;
  // The server itself refuses a request: malformed, too large, or too many at a time. `head` may be incomplete.
  virtual Reply Refusal(const RequestHead& head, unsigned status, std::string_view why) = 0;
  // Called when an answer begins, including one that Refusal() made; not if the client left before.
  virtual void Answered(const RequestHead& /*head*/, unsigned /*status*/) {}
};

}  // namespace nibble::http
