// Compiles the functions of Asio and Beast once, instead of in each file that includes their headers (nibble::asio in
// cmake/NibblePackages.cmake).
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
