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
