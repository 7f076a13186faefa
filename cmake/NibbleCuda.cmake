# The CUDA language and nibble::cudart, nibble::cublaslt, from the toolkit in NIBBLE_CUDA_ROOT (set by deploy/setup.sh
# to a system toolkit or one made of PyPI wheels), else from the nvcc on PATH or in /usr/local/cuda. Included at the top
# level, before kernels/.
include_guard(GLOBAL)

if(NIBBLE_CUDA_ROOT)
  find_program(nibble_nvcc nvcc PATHS ${NIBBLE_CUDA_ROOT}/bin NO_DEFAULT_PATH NO_CACHE)
else()
  find_program(nibble_nvcc nvcc PATHS /usr/local/cuda/bin NO_CACHE)
endif()
if(NOT nibble_nvcc)
  message(FATAL_ERROR "NIBBLE_CUDA needs nvcc: run deploy/setup.sh --cuda on, or configure with -DNIBBLE_CUDA=OFF")
endif()
get_filename_component(nibble_cuda_root ${nibble_nvcc} REALPATH)
get_filename_component(nibble_cuda_root ${nibble_cuda_root} DIRECTORY)
get_filename_component(nibble_cuda_root ${nibble_cuda_root} DIRECTORY)

# Set before the language is enabled: nvcc 13 no longer compiles for CMake 3.25's default architecture.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)  # Newer architectures use the PTX of sm_90.
endif()
set(CMAKE_CUDA_COMPILER ${nibble_nvcc})
if(NOT CMAKE_CUDA_HOST_COMPILER)
  find_program(nibble_cuda_host NAMES g++-12 g++ REQUIRED NO_CACHE)
  set(CMAKE_CUDA_HOST_COMPILER ${nibble_cuda_host})
endif()
set(CMAKE_CUDA_STANDARD 17)  # The newest that CMake 3.25 supports for CUDA.
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # The trainer must have one runtime, and torch uses the shared one.
enable_language(CUDA)

# Host code of a .cu file rounds like every other file; device code never fuses unless the source says so.
add_library(nibble_cuda_flags INTERFACE)
target_compile_options(nibble_cuda_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -fmad=false -Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off>)

function(nibble_cuda_library name header library)
  find_path(include ${header} PATHS ${nibble_cuda_root}/include NO_DEFAULT_PATH NO_CACHE REQUIRED)
  find_library(file ${library} NO_DEFAULT_PATH NO_CACHE REQUIRED
    PATHS ${nibble_cuda_root}/lib64 ${nibble_cuda_root}/targets/x86_64-linux/lib)
  get_filename_component(folder ${file} DIRECTORY)
  add_library(nibble::${name} SHARED IMPORTED GLOBAL)
  # The rpath is explicit because CMake leaves out folders from which nvcc links.
  set_target_properties(nibble::${name} PROPERTIES IMPORTED_LOCATION ${file}
    INTERFACE_INCLUDE_DIRECTORIES ${include} INTERFACE_LINK_OPTIONS LINKER:-rpath,${folder})
endfunction()
nibble_cuda_library(cudart cuda_runtime.h cudart)
nibble_cuda_library(cublaslt cublasLt.h cublasLt)
message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION} in ${nibble_cuda_root}, for ${CMAKE_CUDA_ARCHITECTURES}")
