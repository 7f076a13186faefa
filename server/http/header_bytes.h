// Reads the header of a request with a limit for all of its bytes. Beast's own limit counts only bytes that it has not
// parsed yet, so a client that sends one field at a time could send fields without end.
#pragma once
#include <boost/asio/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <cstdint>

namespace nibble::http {

// Of one request. Parser: of boost::beast::http.
template <typename Parser>
class HeaderBytes {
 public:
  using Error = boost::system::error_code;

  HeaderBytes(Parser& parser, std::size_t max) : parser_(parser), max_(max) {
    parser_.eager(false);  // the body stays in the buffer
    parser_.header_limit(static_cast<std::uint32_t>(max + 1));
  }

  // Parses the buffer's bytes and removes them. Returns need_more until the header is complete, and header_limit if it
  // is too large. While it returns need_more, the buffer holds at most `max` bytes.
  Error Parse(boost::beast::flat_buffer& buffer) {
    Error error = boost::beast::http::error::need_more;
    if (buffer.size() > 0) {
      const std::size_t used = parser_.put(buffer.data(), error);
      buffer.consume(used);
      parsed_ += used;
    }
    const bool more = error == boost::beast::http::error::need_more || (!error && !parser_.is_header_done());
    if (more) error = boost::beast::http::error::need_more;
    if ((more || !error) && parsed_ + (more ? buffer.size() : 0) > max_)
      error = boost::beast::http::error::header_limit;
    return error;
  }
  // The connection has failed with this error before the header was complete.
  Error Cut(Error error) const {
    if (error != boost::asio::error::eof) return error;
    return parser_.got_some() ? boost::beast::http::error::partial_message : boost::beast::http::error::end_of_stream;
  }

 private:
  Parser& parser_;
  const std::size_t max_;
  std::size_t parsed_ = 0;
};

}  // namespace nibble::http
