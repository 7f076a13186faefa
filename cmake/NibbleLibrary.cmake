# The compiler flags of all C++ code, and the functions that define libraries, programs and tests.

add_library(nibble_flags INTERFACE)
target_compile_features(nibble_flags INTERFACE cxx_std_20)
# -ffp-contract=off: a multiply and an add are rounded separately unless the source calls fma (docs/numerics.md 3).
target_compile_options(nibble_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Werror -ffp-contract=off -fstack-protector-strong>)
# -Wthread-safety checks the lock annotations (server/base/mutex.h). Only clang has it.
target_compile_options(nibble_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety>)
target_include_directories(nibble_flags INTERFACE ${PROJECT_SOURCE_DIR})
if(NIBBLE_SANITIZE)
  target_compile_options(nibble_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${NIBBLE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  # For tests that measure memory. The compilers' own macros differ.
  if(NIBBLE_SANITIZE MATCHES "address")
    target_compile_definitions(nibble_flags INTERFACE NIBBLE_ASAN)
  elseif(NIBBLE_SANITIZE STREQUAL "thread")
    target_compile_definitions(nibble_flags INTERFACE NIBBLE_TSAN)
  endif()
  # With -fsanitize, gcc may warn about variables that are initialized (gcc manual, -fsanitize). The build without
  # sanitizers has this warning.
  target_compile_options(nibble_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  # Targets that include torch's headers (NibbleTorch.cmake sets NIBBLE_SEES_TORCH): libtorch, which is not
  # instrumented, hides the type information of some of its classes (c10::detail::ListImpl, c10::detail::DictImpl), so
  # this check would consider them different from the types in the headers.
  target_compile_options(nibble_flags INTERFACE
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:$<TARGET_PROPERTY:NIBBLE_SEES_TORCH>>>:-fno-sanitize=vptr>)
  target_link_options(nibble_flags INTERFACE -fsanitize=${NIBBLE_SANITIZE})
endif()

# nibble_unity(TARGET): compiles four files of the target as one, because parsing headers and instantiating their
# templates takes most of the time of each. CMake compiles a file with options of its own, such as a kernel for AVX2, by
# itself.
function(nibble_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${NIBBLE_UNITY} UNITY_BUILD_BATCH_SIZE 4)
endfunction()

# nibble_program_pch(TARGET SET): lets a program use a set of precompiled headers. gcc accepts a precompiled header only
# in code compiled with the same option: -fPIE (the default for programs) for the sets of tests, -fPIC for the sets of
# libraries.
function(nibble_program_pch target set)
  target_precompile_headers(${target} REUSE_FROM nibble_pch_${set})
  if(NOT set MATCHES "tests$")
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()

# nibble_library(NAME jobs HDRS a.h SRCS a.cc DEPS nibble::base [PRIVATE_DEPS ...] [PCH grpc] [COLD]): target
# nibble_jobs, alias nibble::jobs. Without SRCS, the library has only headers. Headers are included relative to the
# project root. DEPS are public because headers use their types; only .cc files use PRIVATE_DEPS. PCH names a set of
# precompiled headers (cmake/NibblePch.cmake), by default std. COLD: none of the code takes a noticeable part of a
# program's time, so release builds compile it with NIBBLE_COLD_OPTIONS, in less time.
set(NIBBLE_COLD_OPTIONS "")
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(NIBBLE_COLD_OPTIONS -O1)
endif()
function(nibble_library)
  cmake_parse_arguments(ARG "COLD" "NAME;PCH" "HDRS;SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  if(NOT ARG_PCH)
    set(ARG_PCH std)
  endif()
  set(target nibble_${ARG_NAME})
  if(ARG_SRCS)
    add_library(${target} STATIC ${ARG_SRCS})
    target_link_libraries(${target} PUBLIC ${ARG_DEPS} PRIVATE nibble_flags ${ARG_PRIVATE_DEPS})
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
    target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_HDRS})
    target_precompile_headers(${target} REUSE_FROM nibble_pch_${ARG_PCH})
    nibble_unity(${target})
    if(ARG_COLD)
      target_compile_options(${target} PRIVATE ${NIBBLE_COLD_OPTIONS})
    endif()
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${ARG_DEPS})
    target_include_directories(${target} INTERFACE ${PROJECT_SOURCE_DIR})
    target_sources(${target} INTERFACE FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_HDRS})
  endif()
  add_library(nibble::${ARG_NAME} ALIAS ${target})
endfunction()

# nibble_coroutines(FILE ...): these sources have coroutines. clang 14 cannot compile its check of function types for
# coroutines that are templates.
function(nibble_coroutines)
  if(NIBBLE_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -fno-sanitize=function)
  endif()
endfunction()

# nibble_binary(NAME nibbled SRCS main.cc DEPS ... [PCH cli]): a program in <build>/bin. PCH: as in nibble_library, by
# default none.
function(nibble_binary)
  cmake_parse_arguments(ARG "" "NAME;PCH" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE nibble_flags ${ARG_DEPS})
  if(ARG_PCH)
    nibble_program_pch(${ARG_NAME} ${ARG_PCH})
  endif()
endfunction()

# The sanitizers' default options for tests, and for tsan its view of gRPC. Their names are the sanitizers'.
if(NIBBLE_SANITIZE)
  add_library(nibble_sanitizer_options OBJECT ${PROJECT_SOURCE_DIR}/tests/support/sanitizer_options.cc)
  if(NIBBLE_SANITIZE STREQUAL "thread")
    target_sources(nibble_sanitizer_options PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/tsan_grpc.cc)
  endif()
  target_link_libraries(nibble_sanitizer_options PRIVATE nibble_flags)
  set_target_properties(nibble_sanitizer_options PROPERTIES CXX_CLANG_TIDY "")
endif()

# nibble_test(NAME plan_test SRCS ... DEPS ... [LABELS unit] [DEFINITIONS ...] [PCH tests]): a GoogleTest program. Each
# test case is a CTest test of its own, so that CTest shows which were skipped. PCH: a set whose name ends in "tests",
# or one of the libraries. Tests are compiled with NIBBLE_COLD_OPTIONS, because compiling them takes longer than running
# them.
function(nibble_test)
  cmake_parse_arguments(ARG "" "NAME;PCH" "SRCS;DEPS;LABELS;DEFINITIONS" ${ARGN})
  if(NOT ARG_PCH)
    set(ARG_PCH tests)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  set(timeout 300)
  set(prefix "")
  if("slow" IN_LIST ARG_LABELS OR "full" IN_LIST ARG_LABELS)
    set(timeout 1800)
    # CTest finds a test's properties by the test's name. Without a prefix, a case's labels would also apply to a
    # case of the same name in a fast program.
    set(prefix "Full.")
  endif()
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE nibble_flags ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  nibble_program_pch(${ARG_NAME} ${ARG_PCH})
  nibble_unity(${ARG_NAME})
  target_compile_options(${ARG_NAME} PRIVATE ${NIBBLE_COLD_OPTIONS})
  target_compile_definitions(${ARG_NAME} PRIVATE NIBBLE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" ${ARG_DEFINITIONS})
  if(NIBBLE_SANITIZE)
    target_link_libraries(${ARG_NAME} PRIVATE nibble_sanitizer_options)
  endif()
  # Idle threads of OpenMP (oneDNN's, torch's) would spin on the processors that other tests need.
  gtest_discover_tests(${ARG_NAME} DISCOVERY_TIMEOUT 120 TEST_PREFIX "${prefix}"
    PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${timeout} ENVIRONMENT OMP_WAIT_POLICY=passive)
endfunction()
