#include "tables.h"

#include <string.h>

enum { BYTES = 256, PAIRS = 65536, PART = 1 << 14 /* elements of a task */ };

struct lookup {
  size_t run, body, size, per_task;
  struct qir_pair_shape s;
  int a, b, y;
  const uint8_t *table[2];
};

/* Returns how many elements from element i on, at most n, have one table, and which. */
static size_t stretch(const struct lookup *v, size_t i, size_t n, int *which) {
  const size_t at = i % v->run, end = at < v->body ? v->body : v->run;
  *which = at >= v->body;
  return end - at < n ? end - at : n;
}

static void run_bytes(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct lookup *v = params;
  const size_t first = (size_t)task * PART;
  const size_t end = first + PART < v->size ? first + PART : v->size;
  const uint8_t *restrict x = buffers[v->a];
  uint8_t *restrict y = buffers[v->y];
  int which;
  for (size_t i = first, n; i < end; i += n) {
    n = stretch(v, i, end - i, &which);
    const uint8_t *restrict table = v->table[which];
    for (size_t j = i; j < i + n; ++j) y[j] = table[x[j]];
  }
}

static void run_pairs(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct lookup *v = params;
  const struct qir_pair_shape *s = &v->s;
  const size_t first = (size_t)task * v->per_task, all = s->outer * s->rows;
  const size_t last = first + v->per_task < all ? first + v->per_task : all;
  int which;
  for (size_t row = first; row < last; ++row) {
    const size_t at = row * s->inner, narrow = row / s->rows * s->inner;
    const uint8_t *restrict a = (const uint8_t *)buffers[v->a] + (s->a_shared ? narrow : at);
    const uint8_t *restrict b = (const uint8_t *)buffers[v->b] + (s->b_shared ? narrow : at);
    uint8_t *restrict y = (uint8_t *)buffers[v->y] + at;
    for (size_t i = 0, n; i < s->inner; i += n) {
      n = stretch(v, at + i, s->inner - i, &which);
      const uint8_t *restrict table = v->table[which];
      for (size_t j = i; j < i + n; ++j) y[j] = table[(size_t)a[j] << 8 | b[j]];
    }
  }
}

static struct lookup *make(const struct qir_runs *runs, size_t entries) {
  const size_t head = qir_round_up(sizeof(struct lookup), 64);
  struct lookup *v = qir_step_alloc(head + 2 * entries);
  if (!v) return NULL;
  v->run = runs->run;
  v->body = runs->body;
  for (int i = 0; i < 2; ++i)
    v->table[i] = memcpy((char *)v + head + (size_t)i * entries, runs->table[i], entries);
  return v;
}

int qir_run_lookup_make(const struct qir_runs *runs, size_t size, int x, int y,
                        struct qir_step *step) {
  struct lookup *v = make(runs, BYTES);
  if (!v) return 0;
  v->size = size;
  v->a = x;
  v->y = y;
  *step = (struct qir_step){run_bytes, v, (long)((size + PART - 1) / PART), 0};
  return 1;
}

int qir_pair_lookup_make(const struct qir_runs *runs, const struct qir_pair_shape *shape, int a,
                         int b, int y, struct qir_step *step) {
  struct lookup *v = make(runs, PAIRS);
  if (!v) return 0;
  size_t rows = shape->outer * shape->rows;
  v->s = *shape;
  if (!shape->a_shared && !shape->b_shared) { /* one long row: cut it into tasks */
    const size_t all = rows * shape->inner;
    size_t inner = all ? all : 1;
    while (inner > PART && inner % 2 == 0) inner /= 2;
    v->s.outer = 1;
    v->s.inner = inner;
    v->s.rows = rows = all / inner;
  }
  v->a = a;
  v->b = b;
  v->y = y;
  v->per_task = PART / (v->s.inner ? v->s.inner : 1) + 1;
  *step = (struct qir_step){run_pairs, v, (long)((rows + v->per_task - 1) / v->per_task), 0};
  return 1;
}
