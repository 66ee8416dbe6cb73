/* Executes plans of MSCCL++ on one rank, in memory that the processes of all ranks share. One thread calls at a time. */
#ifndef CHORALE_PLANS_H
#define CHORALE_PLANS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct chorale_plans chorale_plans;

enum { PLANS_OK = 0, PLANS_INVALID = 1, PLANS_TIMEOUT = 2, PLANS_SYSTEM = 3 };

chorale_plans* chorale_plans_new(void);
void chorale_plans_free(chorale_plans* plans);

/* Why the last call failed. */
const char* chorale_plans_error(const chorale_plans* plans);

/* Checks that `words` of runners/plans/encoding.py are a plan for `rank` that touches only its memory. */
int chorale_plan_check(chorale_plans* plans, const int64_t* words, size_t count, int rank, int ranks);

/* Takes part in the next call of a checked plan, from `not_before_ns` of CLOCK_MONOTONIC on; `end_ns` gets its end.
 *
 * binding: see plan_core.hpp; after a timeout its record contains what each unfinished block waited for
 * threads: number of system threads for each block; 0: all blocks take turns in this thread, and another thread serves
 *          ports */
int chorale_plan_call(chorale_plans* plans, const void* binding, int threads, int64_t not_before_ns, int64_t* end_ns);

#ifdef __cplusplus
}
#endif
#endif
