# `millpond top -- PROGRAM` on a machine with no card: the program over a fake CUPTI of
# tests/record.
if(TARGET recorded_program AND TARGET test_cli)
  add_dependencies(test_cli recorded_program millpond_record)
  target_compile_definitions(test_cli
    PRIVATE MILLPOND_RECORDED_PROGRAM="$<TARGET_FILE:recorded_program>")
endif()
