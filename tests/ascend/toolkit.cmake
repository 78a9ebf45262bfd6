# BOOST_EXT_WITH_ASCEND=ON without a CANN toolkit must fail, and say what is missing. Run by cmake -P.
get_filename_component(root "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
set(build "${root}/build/no_toolkit")
file(REMOVE_RECURSE "${build}")

function(expect_refusal expected)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env --unset=ASCEND_HOME_PATH --unset=ASCEND_TOOLKIT_HOME ${ARGN}
      "${CMAKE_COMMAND}" -S "${root}" -B "${build}" -DBOOST_EXT_WITH_ASCEND=ON -DBOOST_EXT_PYTHON=OFF
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")  # CMake wraps its messages
  string(FIND "${output}" "${expected}" at)
  if(result EQUAL 0 OR at EQUAL -1)
    message(FATAL_ERROR "expected a refusal with \"${expected}\", got ${result}: ${output}")
  endif()
endfunction()

expect_refusal("BOOST_EXT_WITH_ASCEND=ON needs a CANN toolkit")
expect_refusal("must name its folder, got '/nowhere'" ASCEND_HOME_PATH=/nowhere)
expect_refusal("must name its folder, got '/nowhere'" ASCEND_TOOLKIT_HOME=/nowhere)
expect_refusal("has no package ASC" "ASCEND_HOME_PATH=${CMAKE_CURRENT_LIST_DIR}")  # a folder, but no toolkit
file(REMOVE_RECURSE "${build}")

# With a toolkit that has what CANN's has for CMake (a package that adds the language ASC and empties the flags), and a
# compiler that writes down what it was asked: the launchers are built as that language, and nothing around them changes.
set(home "${root}/build/toolkit")
file(REMOVE_RECURSE "${home}")
file(WRITE "${home}/lib64/cmake/asc-config.cmake" [[
set(CMAKE_CXX_FLAGS_RELEASE "")
list(APPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")
]])
file(WRITE "${home}/lib64/cmake/CMakeDetermineASCCompiler.cmake" [[
find_program(CMAKE_ASC_COMPILER bisheng PATHS "$ENV{ASCEND_HOME_PATH}/bin" NO_DEFAULT_PATH)
set(CMAKE_ASC_SOURCE_FILE_EXTENSIONS asc)
set(CMAKE_ASC_COMPILER_ENV_VAR ASC)
configure_file("${CMAKE_CURRENT_LIST_DIR}/CMakeASCCompiler.cmake.in" "${CMAKE_PLATFORM_INFO_DIR}/CMakeASCCompiler.cmake" @ONLY)
]])
file(WRITE "${home}/lib64/cmake/CMakeASCCompiler.cmake.in" [[
set(CMAKE_ASC_COMPILER "@CMAKE_ASC_COMPILER@")
set(CMAKE_ASC_COMPILER_LOADED 1)
set(CMAKE_ASC_SOURCE_FILE_EXTENSIONS asc)
set(CMAKE_ASC_COMPILER_ENV_VAR ASC)
]])
file(WRITE "${home}/lib64/cmake/CMakeASCInformation.cmake" [[
include(CMakeCommonLanguageInclude)
set(CMAKE_ASC_OUTPUT_EXTENSION .o)
set(CMAKE_INCLUDE_FLAG_ASC "-I")
set(CMAKE_ASC_COMPILE_OPTIONS_PIC -fPIC)
set(CMAKE_ASC_COMPILE_OBJECT "<CMAKE_ASC_COMPILER> <DEFINES> <INCLUDES> <FLAGS> -o <OBJECT> -c <SOURCE>")
set(CMAKE_ASC_CREATE_SHARED_LIBRARY
  "<CMAKE_ASC_COMPILER> -shared <LANGUAGE_COMPILE_FLAGS> <LINK_FLAGS> -o <TARGET> <OBJECTS> <LINK_LIBRARIES>")
set(CMAKE_ASC_INFORMATION_LOADED 1)
]])
file(WRITE "${home}/lib64/cmake/CMakeTestASCCompiler.cmake" "set(CMAKE_ASC_COMPILER_WORKS 1 CACHE INTERNAL \"\")\n")
file(WRITE "${home}/bin/bisheng" [[#!/bin/sh
echo "$@" >> "$ASCEND_HOME_PATH/asked"
case "$1" in -shared) exec c++ "$@" ;; esac
while [ "$1" != -o ]; do shift; done
exec c++ -x c++ -fPIC -c /dev/null -o "$2"
]])
file(CHMOD "${home}/bin/bisheng" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
file(WRITE "${home}/include/acl/acl.h" [[
#pragma once
#include <cstddef>
#include <cstdint>
typedef int aclError;
typedef void* aclrtStream;
typedef enum { ACL_MEM_MALLOC_HUGE_FIRST } aclrtMemMallocPolicy;
typedef enum { ACL_DEV_ATTR_VECTOR_CORE_NUM = 201 } aclrtDevAttr;
static const int ACL_SUCCESS = 0;
extern "C" {
aclError aclrtSetDevice(int32_t deviceId);
aclError aclrtGetDevice(int32_t* deviceId);
aclError aclrtGetDeviceInfo(uint32_t deviceId, aclrtDevAttr attr, int64_t* value);
aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy policy);
aclError aclrtMemsetAsync(void* devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream);
}
]])
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}: ${output}")
  endif()
endfunction()
run(c++ -x c++ -shared -fPIC /dev/null -o "${home}/lib64/libascendcl.so")
set(with_toolkit "${CMAKE_COMMAND}" -E env "ASCEND_HOME_PATH=${home}" "${CMAKE_COMMAND}")
run(${with_toolkit} -S "${root}" -B "${build}" -DBOOST_EXT_WITH_ASCEND=ON -DBOOST_EXT_PYTHON=OFF
  -DBOOST_EXT_BASELINE_ONLY=ON -DBOOST_EXT_UNITY=OFF -DCMAKE_EXPORT_COMPILE_COMMANDS=ON)
run(${with_toolkit} --build "${build}" --target boost_ext_ascend)
file(GLOB launchers "${root}/kernels/ascend/*.asc")
file(STRINGS "${home}/asked" asked)
foreach(launcher IN LISTS launchers)
  set(lines "${asked}")
  list(FILTER lines INCLUDE REGEX "-fPIC.* -std=c[+][+]17 -O3 --npu-arch=dav-2201.* -c ${launcher}$")
  list(LENGTH lines times)
  if(NOT times EQUAL 1)
    message(FATAL_ERROR "${launcher} was not compiled as ASC, by C++17, optimized, for dav-2201: ${asked}")
  endif()
endforeach()
if(NOT asked MATCHES "-soname,libboost_ext_ascend.so" OR NOT EXISTS "${build}/kernels/ascend/libboost_ext_ascend.so")
  message(FATAL_ERROR "the library was not linked by the toolkit's compiler: ${asked}")
endif()
file(STRINGS "${build}/compile_commands.json" commands REGEX "csrc/ops/adasum.cpp")
if(NOT commands MATCHES "-O3 -DNDEBUG")
  message(FATAL_ERROR "the toolkit's package has changed the flags of other sources: ${commands}")
endif()
file(REMOVE_RECURSE "${build}" "${home}")
