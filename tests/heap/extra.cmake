# Host memory that runs out, for the tests that ask what the books are like then.
target_sources(test_heap PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/failing_new.cpp)
