// As asio.cc, for Asio's TLS: an object of its own, so that programs without TLS do not link it.
#include <boost/asio/ssl/impl/src.hpp>
