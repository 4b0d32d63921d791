#include "gather.h"

#include <string.h>

struct gather {
  struct qir_gather g;
  int x, index, y;
  size_t per_task; /* rows of y */
  int fault;
};

int *qir_gather_fault(void *params) { return &((struct gather *)params)->fault; }

static void run(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct gather *v = params;
  const size_t all = v->g.outer * v->g.count, first = (size_t)task * v->per_task;
  const size_t end = first + v->per_task < all ? first + v->per_task : all;
  const char *x = buffers[v->x], *index = buffers[v->index];
  char *y = buffers[v->y];
  for (size_t i = first; i < end; ++i) {
    const size_t o = i / v->g.count, which = i % v->g.count;
    int64_t at;
    if (v->g.wide) {
      memcpy(&at, index + which * 8, 8);
    } else {
      int32_t narrow;
      memcpy(&narrow, index + which * 4, 4);
      at = narrow;
    }
    if (at < 0) at += (int64_t)v->g.rows;
    if (at < 0 || (uint64_t)at >= v->g.rows) {
      __atomic_store_n(qir_gather_fault((void *)(uintptr_t)params), 1, __ATOMIC_RELAXED);
      continue;
    }
    memcpy(y + i * v->g.width, x + (o * v->g.rows + (size_t)at) * v->g.width, v->g.width);
  }
}

int qir_gather_make(const struct qir_gather *g, int x, int index, int y, struct qir_step *step) {
  enum { CHUNK = 64 * 1024 /* bytes of a task */ };
  struct gather *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct gather){.g = *g, .x = x, .index = index, .y = y};
  v->per_task = CHUNK / (g->width ? g->width : 1) + 1;
  const size_t all = g->outer * g->count;
  *step = (struct qir_step){run, v, (long)((all + v->per_task - 1) / v->per_task), 0};
  return 1;
}
