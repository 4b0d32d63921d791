#ifndef QIR_STEP_H
#define QIR_STEP_H

/*
 * One operation over numbered buffers, ready to run: what a plan is a list of.
 *
 * Each family has a function that makes one, from a frozen description; all that it needs is
 * copied into `params`, one allocation that free() releases. A step is a number of tasks that do
 * not depend on each other, fixed when it is made: so any number of threads gives the same bytes.
 */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct qir_step {
  void (*run)(const void *params, void *const *buffers, void *scratch, long task);
  void *params;
  long tasks;
  size_t scratch; /* bytes that one running task needs, 64-byte aligned */
};

/* Runs the tasks of a step; scratch holds `threads` times step->scratch. */
void qir_step_run(const struct qir_step *step, void *const *buffers, void *scratch, int threads);

static inline size_t qir_round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

/* Cleared memory for the parameters of a step, aligned to 64 bytes; NULL if there is none. */
void *qir_step_alloc(size_t bytes);

#endif
