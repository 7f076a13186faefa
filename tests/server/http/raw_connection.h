// A client's end of a connection to the HTTP port. It sends raw text.
#pragma once
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::http {

struct RawReply {
  int status = 0;      // 0: the connection ended before the answer was complete
  std::string header;  // including the final empty line
  std::string body;
};

class RawConnection {
 public:
  explicit RawConnection(int port) : RawConnection() { Connect(port); }
  // Holds a file descriptor, but is not connected yet.
  RawConnection() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    EXPECT_GE(socket_, 0);
    const timeval patience{60, 0};  // only a failing test waits that long
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  ~RawConnection() { ::close(socket_); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  void Connect(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  // False: the server has closed the connection.
  bool Send(std::string_view text) {
    return ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  // Waits up to `ms` for the server to send or to close.
  bool ReadableWithin(int ms) {
    pollfd wanted{socket_, POLLIN, 0};
    return ::poll(&wanted, 1, ms) == 1;
  }
  // Waits up to `ms` for the server to reset the connection; reads nothing.
  bool ResetWithin(int ms) {
    pollfd wanted{socket_, 0, 0};
    return ::poll(&wanted, 1, ms) == 1 && (wanted.revents & POLLERR) != 0;
  }
  // Reads the next answer. `without_body`: the answer to a HEAD.
  RawReply Read(bool without_body = false) {
    RawReply reply;
    std::size_t end = std::string::npos;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      if (!Fill()) return reply;
    }
    reply.header = Take(end + 4);
    const std::size_t length_at = reply.header.find("Content-Length: ");
    const std::size_t length = without_body || length_at == std::string::npos
                                   ? 0
                                   : std::stoul(reply.header.substr(length_at + sizeof("Content-Length: ") - 1));
    while (buffer_.size() < length) {
      if (!Fill()) return reply;
    }
    reply.body = Take(length);
    reply.status = std::stoi(reply.header.substr(reply.header.find(' ') + 1));  // "HTTP/1.1 200 ..."
    return reply;
  }
  // Reads up to and including `end`, such as the last chunk of a stream; all bytes so far if the server closes before.
  std::string ReadTo(std::string_view end) {
    std::size_t at = std::string::npos;
    while ((at = buffer_.find(end)) == std::string::npos) {
      if (!Fill()) return Take(buffer_.size());
    }
    return Take(at + end.size());
  }
  RawReply Ask(std::string_view text) {
    Send(text);
    return Read();
  }
  RawReply Get(std::string_view target) {
    return Ask("GET " + std::string(target) + " HTTP/1.1\r\nHost: test\r\n\r\n");
  }
  // Reads until the server closes; false if it does not within a minute.
  bool AwaitClosed() {
    while (Fill()) buffer_.clear();
    return closed_;
  }

 private:
  bool Fill() {
    char bytes[1 << 16];
    const ssize_t got = ::recv(socket_, bytes, sizeof bytes, 0);
    closed_ = got == 0 || (got < 0 && errno == ECONNRESET);
    if (got > 0) buffer_.append(bytes, static_cast<std::size_t>(got));
    return got > 0;
  }
  std::string Take(std::size_t size) {
    std::string taken = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return taken;
  }

  const int socket_;
  std::string buffer_;
  bool closed_ = false;
};

}  // namespace nibble::http
