/* What becomes of the numbers along an axis. */

#include <math.h>

#include "tensors.h"

enum { TOGETHER = 64 /* of the inner axis, whose lines are read once */ };

struct along {
  struct qir_along s;
  enum qir_kind kind;
  int op, least, last, x, y, places;
  size_t k, chunks;
};

static int make(void (*run)(const void *, void *const *, void *, long), const struct along *how,
                size_t scratch, struct qir_step *step) {
  struct along *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = *how;
  v->chunks = (how->s.inner + TOGETHER - 1) / TOGETHER;
  *step = (struct qir_step){run, v, (long)(how->s.outer * v->chunks), qir_round_up(scratch, 64)};
  return 1;
}

/* ---- one number of all ---- */

static double start_of(int op) {
  return op == QIR_PROD         ? 1
         : op == QIR_REDUCE_MAX ? -INFINITY
         : op == QIR_REDUCE_MIN ? INFINITY
                                : 0;
}

static double finish(int op, double sum, double rows) {
  switch (op) {
    case QIR_L2: return sqrt(sum);
    case QIR_LOG_SUM: return log(sum);
    case QIR_MEAN_OF: return sum / rows;
    default: return sum;
  }
}

#define QIR_OVER(expression)                                 \
  for (size_t r = 0; r < rows; ++r)                          \
    for (size_t i = 0; i < n; ++i) {                         \
      const double u = (double)x[r * inner + i], s = sum[i]; \
      sum[i] = (expression);                                 \
    }                                                        \
  break;

static void add_up(int op, const float *x, size_t rows, size_t inner, size_t n, const double *top,
                   double *sum) {
  switch (op) {
    case QIR_PROD: QIR_OVER(s * u)
    case QIR_REDUCE_MAX: QIR_OVER(s != s || s > u ? s : u)
    case QIR_REDUCE_MIN: QIR_OVER(s != s || s < u ? s : u)
    case QIR_L1: QIR_OVER(s + fabs(u))
    case QIR_L2:
    case QIR_SUM_SQUARE: QIR_OVER(s + u * u)
    case QIR_LOG_SUM_EXP: QIR_OVER(s + exp(u - top[i]))
    default: QIR_OVER(s + u)
  }
}

static void run_floats(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct along *v = params;
  const size_t o = (size_t)task / v->chunks, first = (size_t)task % v->chunks * TOGETHER;
  const size_t inner = v->s.inner, rows = v->s.rows;
  const size_t n = inner - first < TOGETHER ? inner - first : TOGETHER;
  const float *x = (const float *)buffers[v->x] + o * rows * inner + first;
  float *y = (float *)buffers[v->y] + o * inner + first;
  double sum[TOGETHER], top[TOGETHER];
  if (v->op == QIR_LOG_SUM_EXP) {
    for (size_t i = 0; i < n; ++i) top[i] = -INFINITY;
    add_up(QIR_REDUCE_MAX, x, rows, inner, n, NULL, top);
    for (size_t i = 0; i < n; ++i) top[i] = isfinite(top[i]) ? top[i] : 0;
  }
  for (size_t i = 0; i < n; ++i) sum[i] = start_of(v->op);
  add_up(v->op, x, rows, inner, n, top, sum);
  for (size_t i = 0; i < n; ++i)
    y[i] = (float)(v->op == QIR_LOG_SUM_EXP ? log(sum[i]) + top[i]
                                            : finish(v->op, sum[i], (double)rows));
}

#define QIR_REDUCE(type, least_of_all, greatest_of_all)                                        \
  static void run_##type(const void *params, void *const *buffers, void *scratch, long task) { \
    (void)scratch;                                                                             \
    const struct along *v = params;                                                            \
    const size_t o = (size_t)task / v->chunks, first = (size_t)task % v->chunks * TOGETHER;    \
    const size_t inner = v->s.inner;                                                           \
    const size_t n = inner - first < TOGETHER ? inner - first : TOGETHER;                      \
    const type *x = (const type *)buffers[v->x] + o * v->s.rows * inner + first;               \
    type *y = (type *)buffers[v->y] + o * inner + first;                                       \
    for (size_t i = 0; i < n; ++i) {                                                           \
      type s = v->op == QIR_PROD         ? 1                                                   \
               : v->op == QIR_REDUCE_MAX ? least_of_all                                        \
               : v->op == QIR_REDUCE_MIN ? greatest_of_all                                     \
                                         : 0;                                                  \
      for (size_t r = 0; r < v->s.rows; ++r) {                                                 \
        const type u = x[r * inner + i];                                                       \
        s = v->op == QIR_PROD         ? (type)((uint64_t)s * (uint64_t)u)                      \
            : v->op == QIR_REDUCE_MAX ? (u > s ? u : s)                                        \
            : v->op == QIR_REDUCE_MIN ? (u < s ? u : s)                                        \
                                      : (type)((uint64_t)s + (uint64_t)u);                     \
      }                                                                                        \
      y[i] = s;                                                                                \
    }                                                                                          \
  }
QIR_REDUCE(int32_t, INT32_MIN, INT32_MAX)
QIR_REDUCE(int64_t, INT64_MIN, INT64_MAX)

int qir_reduce_make(enum qir_reduction op, enum qir_kind kind, const struct qir_along *how, int x,
                    int y, struct qir_step *step) {
  const struct along v = {.s = *how, .kind = kind, .op = op, .x = x, .y = y};
  return make(kind == QIR_F32   ? run_floats
              : kind == QIR_I32 ? run_int32_t
                                : run_int64_t,
              &v, 0, step);
}

/* ---- places ---- */

/* Whether u comes before w; NaN is greater than everything. */
#define QIR_BEFORE(u, w, least) \
  ((least) ? (u) < (w) || ((w) != (w) && (u) == (u)) : (u) > (w) || ((u) != (u) && (w) == (w)))

#define QIR_PLACES(type)                                                                         \
  static void place_##type(const void *params, void *const *buffers, void *scratch, long task) { \
    (void)scratch;                                                                               \
    const struct along *v = params;                                                              \
    const size_t o = (size_t)task / v->chunks, first = (size_t)task % v->chunks * TOGETHER;      \
    const size_t inner = v->s.inner, rows = v->s.rows;                                           \
    const size_t end = inner - first < TOGETHER ? inner : first + TOGETHER;                      \
    for (size_t i = first; i < end; ++i) {                                                       \
      const type *x = (const type *)buffers[v->x] + o * rows * inner + i;                        \
      size_t best = v->last ? rows - 1 : 0;                                                      \
      for (size_t j = 1; j < rows; ++j) {                                                        \
        const size_t r = v->last ? rows - 1 - j : j;                                             \
        const type u = x[r * inner], w = x[best * inner];                                        \
        if (w == w && (u != u || (v->least ? u < w : u > w))) best = r;                          \
      }                                                                                          \
      ((int64_t *)buffers[v->y])[o * inner + i] = (int64_t)best;                                 \
    }                                                                                            \
  }                                                                                              \
                                                                                                 \
  static void top_##type(const void *params, void *const *buffers, void *scratch, long task) {   \
    const struct along *v = params;                                                              \
    const size_t o = (size_t)task / v->chunks, first = (size_t)task % v->chunks * TOGETHER;      \
    const size_t inner = v->s.inner, rows = v->s.rows, k = v->k;                                 \
    const size_t end = inner - first < TOGETHER ? inner : first + TOGETHER;                      \
    size_t *found = scratch;                                                                     \
    for (size_t i = first; i < end; ++i) {                                                       \
      const type *x = (const type *)buffers[v->x] + o * rows * inner + i;                        \
      size_t count = 0;                                                                          \
      for (size_t r = 0; r < rows; ++r) {                                                        \
        const type u = x[r * inner];                                                             \
        size_t at = count;                                                                       \
        while (at > 0 && QIR_BEFORE(u, x[found[at - 1] * inner], v->least)) --at;                \
        if (at == k) continue;                                                                   \
        if (count < k) ++count;                                                                  \
        for (size_t j = count - 1; j > at; --j) found[j] = found[j - 1];                         \
        found[at] = r;                                                                           \
      }                                                                                          \
      for (size_t j = 0; j < k; ++j) {                                                           \
        const size_t at = (o * k + j) * inner + i;                                               \
        ((type *)buffers[v->y])[at] = x[found[j] * inner];                                       \
        ((int64_t *)buffers[v->places])[at] = (int64_t)found[j];                                 \
      }                                                                                          \
    }                                                                                            \
  }
QIR_PLACES(float)
QIR_PLACES(int32_t)
QIR_PLACES(int64_t)

int qir_place_make(enum qir_kind kind, int least, int last, const struct qir_along *how, int x,
                   int y, struct qir_step *step) {
  const struct along v = {.s = *how, .least = least, .last = last, .x = x, .y = y};
  return make(kind == QIR_F32   ? place_float
              : kind == QIR_I32 ? place_int32_t
                                : place_int64_t,
              &v, 0, step);
}

int qir_top_k_make(enum qir_kind kind, int least, size_t k, const struct qir_along *how, int x,
                   int y, int places, struct qir_step *step) {
  const struct along v = {.s = *how, .least = least, .k = k, .x = x, .y = y, .places = places};
  return make(kind == QIR_F32   ? top_float
              : kind == QIR_I32 ? top_int32_t
                                : top_int64_t,
              &v, (k + 1) * sizeof(size_t), step);
}
