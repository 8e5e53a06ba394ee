# Compile options shared by every target of this project.
add_library(mimo_options INTERFACE)
target_include_directories(mimo_options INTERFACE ${PROJECT_SOURCE_DIR}/src)
# nvcc takes none of these options itself: CUDA sources have their own (src/ops/cuda).
target_compile_options(mimo_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:
  -Wall;-Wextra;-Wpedantic;-Wshadow;-Wnon-virtual-dtor;-Woverloaded-virtual;-Wimplicit-fallthrough;
  $<$<BOOL:${MIMO_WERROR}>:-Werror>>)
# GCC 12 reports moved-from tl::expected payloads as maybe-uninitialized at -O3 (false positives).
target_compile_options(mimo_options INTERFACE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-maybe-uninitialized>)
# Fused multiply-add only where the code asks for it: results must not depend on the compiler's mood.
target_compile_options(mimo_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
target_link_libraries(mimo_options INTERFACE tl::expected fmt::fmt Boost::json Threads::Threads)
if(MIMO_SANITIZE)
  target_compile_options(mimo_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined;-fno-sanitize-recover=all;-fno-omit-frame-pointer>)
  target_link_options(mimo_options INTERFACE -fsanitize=address,undefined)
endif()
if(MIMO_TSAN)
  target_compile_options(mimo_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=thread;-fno-omit-frame-pointer>)
  # GCC 12 warns of fences, which ThreadSanitizer does not model.
  target_compile_options(mimo_options INTERFACE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-tsan>)
  target_link_options(mimo_options INTERFACE -fsanitize=thread)
endif()
if(MIMO_FUZZ)
  target_compile_options(mimo_options INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  target_link_options(mimo_options INTERFACE -fsanitize=address,undefined)
endif()

# mimo_library(NAME deps...): a static library from every .cpp under the calling folder.
function(mimo_library name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  # The CUDA backend is a library of its own.
  list(FILTER sources EXCLUDE REGEX "/ops/cuda/")
  add_library(mimo_${name} STATIC ${sources})
  target_link_libraries(mimo_${name} PUBLIC mimo_options ${ARGN})
endfunction()

# mimo_test(FOLDER deps...): one GoogleTest binary from tests/FOLDER/*_test.cpp. Tests with "Slow" in their name get the
# label slow, which `make test-fast` leaves out.
function(mimo_test folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*_test.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(test_${folder} ${sources})
  target_include_directories(test_${folder} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(test_${folder} PRIVATE MIMO_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(test_${folder} PRIVATE ${ARGN} GTest::gmock GTest::gtest_main)
  gtest_discover_tests(test_${folder} TEST_PREFIX ${folder}. TEST_FILTER "-*Slow*" TEST_LIST ${folder}_tests
    PROPERTIES LABELS unit DISCOVERY_TIMEOUT 60)
  gtest_discover_tests(test_${folder} TEST_PREFIX ${folder}. TEST_FILTER "*Slow*" TEST_LIST ${folder}_slow_tests
    PROPERTIES LABELS slow DISCOVERY_TIMEOUT 60)
endfunction()
