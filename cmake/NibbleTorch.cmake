# nibble::torch: libtorch for the trainer, from NIBBLE_TORCH_DIR (the `torch` folder of the wheel, set by
# deploy/setup.sh). Only server/trainer includes this file. nibble::torch links libtorch_cpu and libc10, which need only
# a few libraries of CUDA; with NIBBLE_TORCH_WITH_CUDA (set if there is a GPU) also libtorch_cuda.
#
# Does not use find_package(Torch), which adds the CUDA toolkit, global flags and the wheel's whole include folder.
include_guard(GLOBAL)

if(NOT EXISTS "${NIBBLE_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "NIBBLE_TRAINER needs libtorch and NIBBLE_TORCH_DIR is '${NIBBLE_TORCH_DIR}': "
    "run deploy/setup.sh, or configure with -DNIBBLE_TRAINER=OFF")
endif()

# The wheel's include folder also has old headers of protobuf, fmt and oneDNN, which would hide the system's. So the
# trainer uses a folder of links to torch's own headers.
set(nibble_torch_view ${PROJECT_BINARY_DIR}/torch_include)
file(MAKE_DIRECTORY ${nibble_torch_view})
foreach(part ATen c10 torch)
  file(CREATE_LINK ${NIBBLE_TORCH_DIR}/include/${part} ${nibble_torch_view}/${part} SYMBOLIC)
endforeach()

# The wheel uses the C++11 ABI of libstdc++, like all of Debian, so no flag is needed.
add_library(nibble_torch INTERFACE)
add_library(nibble::torch ALIAS nibble_torch)
target_include_directories(nibble_torch SYSTEM INTERFACE
  ${nibble_torch_view} ${nibble_torch_view}/torch/csrc/api/include)
# CMake passes this property to all targets that include torch's headers; nibble_flags reads it.
set_target_properties(nibble_torch PROPERTIES
  INTERFACE_NIBBLE_SEES_TORCH ON COMPATIBLE_INTERFACE_BOOL NIBBLE_SEES_TORCH)
# Absolute paths: CMake gives the built program an rpath to their folder, so it runs with no environment variable.
target_link_libraries(nibble_torch INTERFACE
  ${NIBBLE_TORCH_DIR}/lib/libtorch_cpu.so ${NIBBLE_TORCH_DIR}/lib/libc10.so)
# The OpenMP runtime that libtorch_cpu loads, so that a process has only one.
file(GLOB nibble_torch_openmp ${NIBBLE_TORCH_DIR}/lib/libgomp*.so*)
if(NOT nibble_torch_openmp)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  set(nibble_torch_openmp OpenMP::OpenMP_CXX)
endif()
target_link_libraries(nibble_torch INTERFACE ${nibble_torch_openmp})
if(NIBBLE_TORCH_WITH_CUDA)
  # libtorch_cuda registers its kernels when it is loaded. Our code uses none of its symbols, so the linker would leave
  # it out.
  target_link_libraries(nibble_torch INTERFACE
    -Wl,--push-state,--no-as-needed ${NIBBLE_TORCH_DIR}/lib/libtorch_cuda.so -Wl,--pop-state
    ${NIBBLE_TORCH_DIR}/lib/libc10_cuda.so)
endif()
message(STATUS "libtorch: ${NIBBLE_TORCH_DIR} (CUDA: ${NIBBLE_TORCH_WITH_CUDA})")
