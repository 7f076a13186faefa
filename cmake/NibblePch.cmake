# Precompiled headers. Parsing the headers of gRPC, GoogleTest or CLI11 takes longer than the rest of most of our files,
# so each set of headers in cmake/pch/ is compiled once and shared by all targets that name it.
# -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds without them.

# nibble_pch(NAME grpc [EXECUTABLE] DEPS nibble::proto [OPTIONS -O1]): compiles cmake/pch/grpc.h, so that targets can
# name it. EXECUTABLE: for programs. gcc accepts a precompiled header only with the same -fPIC or -fPIE.
function(nibble_pch)
  cmake_parse_arguments(ARG "EXECUTABLE" "NAME" "DEPS;OPTIONS" ${ARGN})
  set(target nibble_pch_${ARG_NAME})
  add_library(${target} OBJECT ${PROJECT_SOURCE_DIR}/cmake/pch/empty.cc)
  target_precompile_headers(${target} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/pch/${ARG_NAME}.h)
  target_link_libraries(${target} PRIVATE nibble_flags ${ARG_DEPS})
  target_compile_options(${target} PRIVATE ${ARG_OPTIONS})
  # No ccache here: if an older precompiled header exists at the output path, ccache puts that file into its key, in
  # place of the headers. So after a change of the headers it may return a precompiled header of the old ones.
  set_target_properties(${target} PROPERTIES CXX_CLANG_TIDY "" CXX_COMPILER_LAUNCHER "")
  if(ARG_EXECUTABLE)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIE)
  endif()
endfunction()

nibble_pch(NAME std DEPS absl::status absl::statusor absl::strings absl::time Threads::Threads)
if(NIBBLE_SERVER)
  nibble_pch(NAME grpc DEPS nibble::proto)
  nibble_pch(NAME cli DEPS nibble::proto CLI11::CLI11)
endif()
if(NIBBLE_TESTS)
  nibble_pch(NAME tests EXECUTABLE DEPS GTest::gtest GTest::gmock absl::status absl::statusor absl::strings absl::time
    OPTIONS ${NIBBLE_COLD_OPTIONS})
  if(NIBBLE_SERVER)
    nibble_pch(NAME grpc_tests EXECUTABLE DEPS GTest::gtest GTest::gmock nibble::proto OPTIONS ${NIBBLE_COLD_OPTIONS})
  endif()
endif()
