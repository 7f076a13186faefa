# What `cmake --install BUILD --component server|trainer|client` puts where. The Dockerfile installs with it.
#   bin/         nibbled, nibble (client and server: a container probes itself with it), nibble-trainer
#   lib/nibble/  what a program needs that no Debian package brings: libtorch, CUDA's libraries
# A component installs alone: server and client bring no libtorch.
include_guard(GLOBAL)

set(nibble_library_folder lib/nibble)
# Libraries of the distribution are its packages' business.
set(nibble_system_folders "^/lib/" "^/lib64/" "^/usr/lib/(x86_64|aarch64)-linux-gnu/")

# nibble_install(nibbled COMPONENT server KERNELS): the program, and those of its libraries that lie outside the distribution;
# with KERNELS also our CUDA library, where there is one: a dependency set leaves out what the project itself builds.
function(nibble_install target)
  cmake_parse_arguments(ARG "KERNELS" "COMPONENT" "" ${ARGN})
  if(ARG_KERNELS AND NIBBLE_CUDA)
    set_property(TARGET nibble_kernels_cuda PROPERTY INSTALL_RPATH "$ORIGIN")
    install(TARGETS nibble_kernels_cuda RUNTIME_DEPENDENCY_SET nibble_${ARG_COMPONENT}_libraries
      LIBRARY DESTINATION ${nibble_library_folder} COMPONENT ${ARG_COMPONENT})
  endif()
  set_property(TARGET ${target} PROPERTY INSTALL_RPATH "$ORIGIN/../${nibble_library_folder}")
  install(TARGETS ${target} RUNTIME_DEPENDENCY_SET nibble_${ARG_COMPONENT}_libraries
    RUNTIME DESTINATION bin COMPONENT ${ARG_COMPONENT})
  install(RUNTIME_DEPENDENCY_SET nibble_${ARG_COMPONENT}_libraries
    POST_EXCLUDE_REGEXES ${nibble_system_folders}
    LIBRARY DESTINATION ${nibble_library_folder} COMPONENT ${ARG_COMPONENT})
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/nibble COMPONENT ${ARG_COMPONENT})
endfunction()

nibble_install(nibbled COMPONENT server KERNELS)
nibble_install(nibble COMPONENT client)
if(NIBBLE_TRAINER)
  nibble_install(nibble-trainer COMPONENT trainer KERNELS)
endif()
