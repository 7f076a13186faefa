# Targets for Debian packages without a usable CMake configuration: SOCI, SQLite and RE2 have none, and oneDNN's needs
# OpenCL headers, which its package does not depend on.
include_guard(GLOBAL)

function(nibble_system_library name header library)
  find_path(NIBBLE_${name}_INCLUDE ${header} REQUIRED)
  find_library(NIBBLE_${name}_LIBRARY ${library} REQUIRED)
  mark_as_advanced(NIBBLE_${name}_INCLUDE NIBBLE_${name}_LIBRARY)
  add_library(nibble::${name} UNKNOWN IMPORTED GLOBAL)
  set_target_properties(nibble::${name} PROPERTIES IMPORTED_LOCATION ${NIBBLE_${name}_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${NIBBLE_${name}_INCLUDE} INTERFACE_LINK_LIBRARIES "${ARGN}")
endfunction()

nibble_system_library(soci_core soci/soci.h soci_core)
nibble_system_library(sqlite3 sqlite3.h sqlite3)
nibble_system_library(soci_sqlite3 soci/sqlite3/soci-sqlite3.h soci_sqlite3 nibble::soci_core)
nibble_system_library(dnnl oneapi/dnnl/dnnl.hpp dnnl)
nibble_system_library(re2 re2/re2.h re2)

# Asio and Beast consist of headers only. Compiling their functions once saves 6 to 9 s of processor time for each
# file that includes them.
find_package(OpenSSL REQUIRED)
add_library(nibble_asio STATIC ${PROJECT_SOURCE_DIR}/cmake/asio/asio.cc ${PROJECT_SOURCE_DIR}/cmake/asio/asio_ssl.cc)
target_link_libraries(nibble_asio PUBLIC Boost::headers OpenSSL::SSL Threads::Threads PRIVATE nibble_flags)
target_compile_definitions(nibble_asio PUBLIC BOOST_ASIO_SEPARATE_COMPILATION BOOST_BEAST_SEPARATE_COMPILATION)
set_target_properties(nibble_asio PROPERTIES CXX_CLANG_TIDY "")
add_library(nibble::asio ALIAS nibble_asio)
