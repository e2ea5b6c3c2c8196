# What cmake --install puts where: the program, its manual page, the scripts of jobs/, the embedded model with example requests, the
# documentation, and module files that find the rest from their own place, so that --prefix may be chosen late.
include(GNUInstallDirs)

install(TARGETS nocturne RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/nocturne.1
  COMMAND ${CMAKE_SOURCE_DIR}/tools/make_man_page.sh $<TARGET_FILE:nocturne> ${PROJECT_VERSION} > ${CMAKE_BINARY_DIR}/nocturne.1
  DEPENDS nocturne ${CMAKE_SOURCE_DIR}/tools/make_man_page.sh VERBATIM)
add_custom_target(man-page ALL DEPENDS ${CMAKE_BINARY_DIR}/nocturne.1)
install(FILES ${CMAKE_BINARY_DIR}/nocturne.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)

install(DIRECTORY jobs DESTINATION ${CMAKE_INSTALL_DATADIR}/nocturne USE_SOURCE_PERMISSIONS)
install(DIRECTORY inputs DESTINATION ${CMAKE_INSTALL_DATADIR}/nocturne)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES README.md LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# A site's modules that the program was built with, in the order to load them.
set(NOCTURNE_MODULE_PREREQUISITES "" CACHE STRING "Modules that nocturne's module loads first, for example openmpi/5.0;hdf5/1.14")
set(NOCTURNE_TCL_PREREQUISITES "")
set(NOCTURNE_LUA_PREREQUISITES "")
foreach(module ${NOCTURNE_MODULE_PREREQUISITES})
  string(APPEND NOCTURNE_TCL_PREREQUISITES "module load ${module}\n")
  string(APPEND NOCTURNE_LUA_PREREQUISITES "depends_on(\"${module}\")\n")
endforeach()
configure_file(modulefiles/nocturne.tcl.in ${CMAKE_BINARY_DIR}/modulefiles/nocturne/${PROJECT_VERSION} @ONLY)
configure_file(modulefiles/nocturne.lua.in ${CMAKE_BINARY_DIR}/modulefiles/nocturne/${PROJECT_VERSION}.lua @ONLY)
install(DIRECTORY ${CMAKE_BINARY_DIR}/modulefiles DESTINATION ${CMAKE_INSTALL_DATADIR})
