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

chorale_plans* chorale_plans_new(int rank, int ranks);
void chorale_plans_free(chorale_plans* plans);

/* Why the last call failed; and after a time-out a line for each block that was not finished: block, step, reason. */
const char* chorale_plans_error(const chorale_plans* plans);
const char* chorale_plans_blocked(const chorale_plans* plans);

/* The number of the plan that the words of runners/plans/encoding.py say; negative if they say none. */
int64_t chorale_plan_load(chorale_plans* plans, const int64_t* words, size_t count);

/* Bytes that each rank takes with chunks cut into pieces of `piece_bytes`, and where in them its memory begins. */
int chorale_plan_shape(chorale_plans* plans, int64_t plan, size_t piece_bytes, size_t* bytes, size_t* data);

/* Use `memory`, that of all ranks one after another, from now on, as before a first call; the own part must be zero. */
int chorale_plan_bind(chorale_plans* plans, int64_t plan, void* memory, size_t piece_bytes, int type);

/* Take part in the next call, from `not_before_ns` of CLOCK_MONOTONIC on; its end comes back in `end_ns`. */
int chorale_plan_execute(chorale_plans* plans, int64_t plan, double limit_s, int64_t not_before_ns, int64_t* end_ns);

#ifdef __cplusplus
}
#endif
#endif
