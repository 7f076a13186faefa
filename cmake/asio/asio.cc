// What Asio and Beast compile in this file instead of in each file that includes them (nibble::asio in
// cmake/NibblePackages.cmake).
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
