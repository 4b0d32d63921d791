#include <math.h>
#include <string.h>

#include "tensors.h"

/* n elements from operands whose steps are given, to a y without gaps. */
typedef void (*loop_fn)(const char *a, const char *b, const char *c, char *y, size_t n,
                        const size_t *steps);

enum { CHUNK = 16 * 1024 /* elements of a task */ };

struct apply {
  struct qir_apply how;
  loop_fn loop;
  size_t sizes[3], y_size; /* bytes of an element */
  size_t lines, per_task;  /* of the innermost axis */
  int buffers[3], y;
};

static void run(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct apply *v = params;
  const size_t inner = v->how.shape[v->how.rank - 1];
  const size_t first = (size_t)task * v->per_task;
  const size_t end = first + v->per_task < v->lines ? first + v->per_task : v->lines;
  size_t steps[3];
  for (int o = 0; o < 3; ++o) steps[o] = v->how.steps[o][v->how.rank - 1];
  for (size_t line = first; line < end; ++line) {
    size_t at[3] = {0, 0, 0}, rest = line;
    for (size_t axis = v->how.rank - 1; axis-- > 0;) {
      const size_t place = rest % v->how.shape[axis];
      rest /= v->how.shape[axis];
      for (int o = 0; o < 3; ++o) at[o] += place * v->how.steps[o][axis];
    }
    const char *from[3];
    for (int o = 0; o < 3; ++o) from[o] = (char *)buffers[v->buffers[o]] + at[o] * v->sizes[o];
    v->loop(from[0], from[1], from[2], (char *)buffers[v->y] + line * inner * v->y_size, inner,
            steps);
  }
}

static int make(loop_fn loop, const struct qir_apply *how, const size_t *sizes, size_t y_size,
                const int *buffers, int y, struct qir_step *step) {
  if (!loop) return 0;
  struct apply *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct apply){.how = *how, .loop = loop, .y_size = y_size, .lines = 1, .y = y};
  memcpy(v->sizes, sizes, sizeof v->sizes);
  memcpy(v->buffers, buffers, sizeof v->buffers);
  for (size_t axis = 0; axis + 1 < how->rank; ++axis) v->lines *= how->shape[axis];
  const size_t inner = how->shape[how->rank - 1];
  if (!inner) v->lines = 0;
  v->per_task = CHUNK / (inner ? inner : 1) + 1;
  *step = (struct qir_step){run, v, (long)((v->lines + v->per_task - 1) / v->per_task), 0};
  return 1;
}

/* ---- two operands ---- */

/* Steps are 0 or 1 nearly always: loops of their own for those are vectorized. */
#define QIR_LOOP(name, type, result, expression)                                   \
  static void name(const char *a, const char *b, const char *c, char *y, size_t n, \
                   const size_t *steps) {                                          \
    (void)c;                                                                       \
    const type *p = (const type *)a, *q = (const type *)b;                         \
    result *to = (result *)y;                                                      \
    const size_t s = steps[0], t = steps[1];                                       \
    if (s == 1 && t == 1)                                                          \
      for (size_t i = 0; i < n; ++i) {                                             \
        const type u = p[i], w = q[i];                                             \
        to[i] = (result)(expression);                                              \
      }                                                                            \
    else if (s == 1 && t == 0)                                                     \
      for (size_t i = 0; i < n; ++i) {                                             \
        const type u = p[i], w = *q;                                               \
        to[i] = (result)(expression);                                              \
      }                                                                            \
    else if (s == 0 && t == 1)                                                     \
      for (size_t i = 0; i < n; ++i) {                                             \
        const type u = *p, w = q[i];                                               \
        to[i] = (result)(expression);                                              \
      }                                                                            \
    else                                                                           \
      for (size_t i = 0; i < n; ++i) {                                             \
        const type u = p[i * s], w = q[i * t];                                     \
        to[i] = (result)(expression);                                              \
      }                                                                            \
  }

#define QIR_FLOATS(type, kind, power)                                                        \
  QIR_LOOP(add_##kind, type, type, u + w)                                                    \
  QIR_LOOP(sub_##kind, type, type, u - w)                                                    \
  QIR_LOOP(mul_##kind, type, type, u *w)                                                     \
  QIR_LOOP(div_##kind, type, type, u / w)                                                    \
  QIR_LOOP(min_##kind, type, type, u < w || u != u ? u : w)                                  \
  QIR_LOOP(max_##kind, type, type, u > w || u != u ? u : w)                                  \
  QIR_LOOP(pow_##kind, type, type, pow((double)u, (double)w))                                \
  QIR_LOOP(difference_##kind, type, type, ((double)u - (double)w) * ((double)u - (double)w)) \
  QIR_LOOP(prelu_##kind, type, type, u < 0 ? (double)w * (double)u : (double)u)
QIR_FLOATS(float, f32, pow)
QIR_FLOATS(double, f64, pow)

/* Sums that wrap are of unsigned numbers: 64 bits hold all of them. */
#define QIR_WHOLE(type, kind)                                 \
  QIR_LOOP(add_##kind, type, type, (uint64_t)u + (uint64_t)w) \
  QIR_LOOP(sub_##kind, type, type, (uint64_t)u - (uint64_t)w) \
  QIR_LOOP(mul_##kind, type, type, (uint64_t)u *(uint64_t)w)  \
  QIR_LOOP(div_##kind, type, type,                            \
           !w                 ? 0                             \
           : (int64_t)w == -1 ? (int64_t)(0 - (uint64_t)u)    \
                              : (int64_t)(u / w))             \
  QIR_LOOP(min_##kind, type, type, u < w ? u : w)             \
  QIR_LOOP(max_##kind, type, type, u > w ? u : w)             \
  QIR_LOOP(difference_##kind, type, type, ((uint64_t)u - (uint64_t)w) * ((uint64_t)u - (uint64_t)w))
QIR_WHOLE(int32_t, i32)
QIR_WHOLE(int64_t, i64)

#define QIR_COMPARISONS(type, kind)                  \
  QIR_LOOP(equal_##kind, type, uint8_t, u == w)      \
  QIR_LOOP(not_equal_##kind, type, uint8_t, u != w)  \
  QIR_LOOP(less_##kind, type, uint8_t, u < w)        \
  QIR_LOOP(less_equal_##kind, type, uint8_t, u <= w) \
  QIR_LOOP(greater_##kind, type, uint8_t, u > w)     \
  QIR_LOOP(greater_equal_##kind, type, uint8_t, u >= w)
QIR_COMPARISONS(float, f32)
QIR_COMPARISONS(double, f64)
QIR_COMPARISONS(int8_t, i8)
QIR_COMPARISONS(uint8_t, u8)
QIR_COMPARISONS(int32_t, i32)
QIR_COMPARISONS(int64_t, i64)

#define QIR_BITS(type, kind)             \
  QIR_LOOP(and_##kind, type, type, u &w) \
  QIR_LOOP(or_##kind, type, type, u | w) \
  QIR_LOOP(xor_##kind, type, type, u ^ w)
QIR_BITS(uint8_t, u8)
QIR_BITS(int32_t, i32)
QIR_BITS(int64_t, i64)

#define QIR_COMPARED(kind)                                                                  \
  [QIR_EQUAL] = equal_##kind, [QIR_NOT_EQUAL] = not_equal_##kind, [QIR_LESS] = less_##kind, \
  [QIR_LESS_EQUAL] = less_equal_##kind, [QIR_GREATER] = greater_##kind,                     \
  [QIR_GREATER_EQUAL] = greater_equal_##kind
#define QIR_COUNTED(kind)                                                                         \
  [QIR_ADD] = add_##kind, [QIR_SUB] = sub_##kind, [QIR_MUL] = mul_##kind, [QIR_DIV] = div_##kind, \
  [QIR_MIN] = min_##kind, [QIR_MAX] = max_##kind, [QIR_SQUARED_DIFFERENCE] = difference_##kind
#define QIR_OF_BITS(kind) [QIR_AND] = and_##kind, [QIR_OR] = or_##kind, [QIR_XOR] = xor_##kind

static const loop_fn LOOPS[QIR_KINDS][QIR_OPERATIONS] = {
    [QIR_F32] = {QIR_COUNTED(f32), QIR_COMPARED(f32), [QIR_POW] = pow_f32, [QIR_PRELU] = prelu_f32},
    [QIR_F64] = {QIR_COUNTED(f64), QIR_COMPARED(f64), [QIR_POW] = pow_f64, [QIR_PRELU] = prelu_f64},
    [QIR_I32] = {QIR_COUNTED(i32), QIR_COMPARED(i32), QIR_OF_BITS(i32)},
    [QIR_I64] = {QIR_COUNTED(i64), QIR_COMPARED(i64), QIR_OF_BITS(i64)},
    [QIR_I8] = {QIR_COMPARED(i8)},
    [QIR_U8] = {QIR_COMPARED(u8), QIR_OF_BITS(u8)},
    [QIR_BOOL] = {QIR_COMPARED(u8), QIR_OF_BITS(u8)},
};
static const size_t SIZES[QIR_KINDS] = {4, 8, 1, 1, 2, 2, 4, 4, 8, 1};

int qir_apply_known(enum qir_operation op, enum qir_kind kind) { return LOOPS[kind][op] != NULL; }

int qir_apply_make(enum qir_operation op, enum qir_kind kind, const struct qir_apply *how, int a,
                   int b, int y, struct qir_step *step) {
  const int compares = op >= QIR_EQUAL && op <= QIR_GREATER_EQUAL, buffers[3] = {a, b, b};
  const size_t size = SIZES[kind], sizes[3] = {size, size, size};
  return make(LOOPS[kind][op], how, sizes, compares ? 1 : size, buffers, y, step);
}

/* ---- where ---- */

#define QIR_WHERE(type)                                                                    \
  static void where_##type(const char *a, const char *b, const char *c, char *y, size_t n, \
                           const size_t *steps) {                                          \
    const uint8_t *holds = (const uint8_t *)a;                                             \
    const type *one = (const type *)b, *other = (const type *)c;                           \
    type *to = (type *)y;                                                                  \
    for (size_t i = 0; i < n; ++i)                                                         \
      to[i] = holds[i * steps[0]] ? one[i * steps[1]] : other[i * steps[2]];               \
  }
QIR_WHERE(uint8_t)
QIR_WHERE(uint16_t)
QIR_WHERE(uint32_t)
QIR_WHERE(uint64_t)

int qir_where_make(size_t itemsize, const struct qir_apply *how, int a, int b, int c, int y,
                   struct qir_step *step) {
  const loop_fn loop = itemsize == 1   ? where_uint8_t
                       : itemsize == 2 ? where_uint16_t
                       : itemsize == 4 ? where_uint32_t
                                       : where_uint64_t;
  const size_t sizes[3] = {1, itemsize, itemsize};
  const int buffers[3] = {a, b, c};
  return make(loop, how, sizes, itemsize, buffers, y, step);
}
