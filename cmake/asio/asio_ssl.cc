// Compiles Asio's TLS once, as asio.cc does for the rest. It is an object of its own, so that programs without TLS do
// not link it.
#include <boost/asio/ssl/impl/src.hpp>
