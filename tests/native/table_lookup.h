/* What a table's file says of a call, for tests that compare it with job/table/lookup.py. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes into `answer` the program's digest, or why none runs, or why the file is refused. Returns 1, 0, -1. */
__attribute__((visibility("default"))) int chorale_table_find(const char* path, const int* group, int ranks,
                                                              const char* collective, int root, const char* dtype,
                                                              int64_t size_bytes, char* answer, int room);

#ifdef __cplusplus
}
#endif
