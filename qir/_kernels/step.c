#define _DEFAULT_SOURCE /* madvise, posix_memalign */
#include "step.h"

#include <string.h>
#include <sys/mman.h>

#include "pool.h"

struct call {
  const struct qir_step *step;
  void *const *buffers;
  char *scratch;
};

static void run_task(void *context, long task, int worker) {
  const struct call *call = context;
  const struct qir_step *step = call->step;
  step->run(step->params, call->buffers, call->scratch + (size_t)worker * step->scratch, task);
}

void qir_step_run(const struct qir_step *step, void *const *buffers, void *scratch, int threads) {
  struct call call = {step, buffers, scratch};
  qir_pool_run(step->tasks, threads, run_task, &call);
}

void *qir_step_alloc(size_t bytes) {
  enum { LARGE = 2 << 20 /* bytes of a large page: fewer faults and misses for packed weights */ };
  bytes = qir_round_up(bytes, 64);
  void *memory = NULL;
  if (posix_memalign(&memory, bytes < LARGE ? 64 : LARGE, bytes) != 0) return NULL;
#if defined(MADV_HUGEPAGE)
  if (bytes >= LARGE) madvise(memory, bytes / LARGE * LARGE, MADV_HUGEPAGE);
#endif
  return memset(memory, 0, bytes);
}
