#include "server/http/header_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <string>
#include <string_view>

namespace nibble::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using Parser = beast::http::request_parser<beast::http::empty_body>;
using Error = boost::system::error_code;

constexpr std::size_t kMax = 200;

void Append(beast::flat_buffer& buffer, std::string_view bytes) {
  buffer.commit(asio::buffer_copy(buffer.prepare(bytes.size()), asio::buffer(bytes)));
}

// The result of a header that arrives in pieces.
Error ParseIn(std::string_view text, std::size_t piece) {
  Parser parser;
  HeaderBytes<Parser> header(parser, kMax);
  beast::flat_buffer buffer;
  Error error = header.Parse(buffer);
  while (error == beast::http::error::need_more && !text.empty()) {
    Append(buffer, text.substr(0, piece));
    text.remove_prefix(std::min(piece, text.size()));
    error = header.Parse(buffer);
  }
  return error;
}

// A header of that many bytes with many fields.
std::string HeaderOf(std::size_t bytes) {
  std::string text = "GET / HTTP/1.1\r\n";
  while (text.size() + 20 < bytes) text += "A: 1234\r\n";
  text += "B: ";
  text += std::string(bytes - text.size() - 4, 'b');
  return text + "\r\n\r\n";
}

TEST(HeaderBytesTest, LimitHoldsForEverySizeOfPieces) {
  for (std::size_t piece = 1; piece <= kMax + 2; ++piece) {
    EXPECT_EQ(ParseIn(HeaderOf(kMax), piece), Error()) << piece;
    EXPECT_EQ(ParseIn(HeaderOf(kMax + 1), piece), beast::http::error::header_limit) << piece;
    EXPECT_EQ(ParseIn(HeaderOf(10 * kMax), piece), beast::http::error::header_limit) << piece;
  }
}

TEST(HeaderBytesTest, LimitCountsFieldsThatWereParsedBefore) {
  Parser parser;
  HeaderBytes<Parser> header(parser, kMax);
  beast::flat_buffer buffer;
  // Each piece ends with the first byte of the next field, so the parser can take the fields before it.
  std::string piece = "GET / HTTP/1.1\r\nA";
  std::size_t sent = 0;
  Error error = beast::http::error::need_more;
  while (error == beast::http::error::need_more && sent <= 10 * kMax) {
    Append(buffer, piece);
    sent += piece.size();
    piece = ": 1234\r\nA";
    error = header.Parse(buffer);
    EXPECT_LE(buffer.size(), kMax);
  }
  EXPECT_EQ(error, beast::http::error::header_limit);
  EXPECT_GT(sent, kMax);
  EXPECT_LE(sent, kMax + piece.size());
}

TEST(HeaderBytesTest, LeavesTheBytesAfterTheHeader) {
  Parser parser;
  HeaderBytes<Parser> header(parser, kMax);
  beast::flat_buffer buffer;
  Append(buffer, "GET / HTTP/1.1\r\n\r\n" + std::string(2 * kMax, 'x'));
  EXPECT_EQ(header.Parse(buffer), Error());
  EXPECT_EQ(buffer.size(), 2 * kMax);
}

TEST(HeaderBytesTest, RefusesMalformedHeader) {
  EXPECT_EQ(ParseIn("GET / HTTP/1.1\r\nno colon\r\n\r\n", 100), beast::http::error::bad_field);
}

TEST(HeaderBytesTest, EndOfTheConnectionIsNoRequestOrPartOfOne) {
  Parser parser;
  HeaderBytes<Parser> header(parser, kMax);
  EXPECT_EQ(header.Cut(asio::error::eof), beast::http::error::end_of_stream);
  EXPECT_EQ(header.Cut(asio::error::connection_reset), asio::error::connection_reset);
  beast::flat_buffer buffer;
  Append(buffer, "GET");
  EXPECT_EQ(header.Parse(buffer), beast::http::error::need_more);
  EXPECT_EQ(header.Cut(asio::error::eof), beast::http::error::partial_message);
}

}  // namespace
}  // namespace nibble::http
