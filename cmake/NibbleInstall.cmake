# Layout of `cmake --install BUILD --component server|trainer|client`, which the Dockerfile uses.
#   bin/         nibbled (server), nibble (client), nibble-trainer (trainer); the server image has nibble too, because a
#                container probes itself with it
#   lib/nibble/  libraries that no Debian package provides: libtorch, CUDA's libraries, our library of CUDA kernels
#   share/doc/nibble/LICENSE
# Components are independent: server and client install no libtorch.
include_guard(GLOBAL)

set(nibble_library_folder lib/nibble)
# Folders whose libraries come from packages of the distribution: they are not installed.
set(nibble_system_folders "^/lib/" "^/lib64/" "^/usr/lib/(x86_64|aarch64)-linux-gnu/")

# nibble_install(nibbled COMPONENT server KERNELS): installs the program and those of its libraries that are not from
# the distribution; with KERNELS also our CUDA library, if there is one, because a dependency set leaves out libraries
# of this project.
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
