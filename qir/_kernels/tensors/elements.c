/* Functions of single elements, casts, and quantized values with any number of scales. */

#include <math.h>
#include <string.h>

#include "quantizers/quantizers.h"
#include "requant.h"
#include "tensors.h"

enum { CHUNK = 16 * 1024 /* elements of a task */ };

static size_t left(size_t size, size_t first) {
  return size - first < CHUNK ? size - first : CHUNK;
}

/* ---- functions ---- */

static double logistic(double x) {
  const double small = exp(-fabs(x));
  return (x < 0 ? small : 1) / (1 + small);
}
static double softplus(double x) { return log1p(exp(-fabs(x))) + (x > 0 || x != x ? x : 0); }
static double sign(double x) { return x != x ? x : (x > 0) - (x < 0); }
static double bounded(double x, double low, double high) {
  return x < low ? low : x > high ? high : x;
}

#define QIR_F(name, expression)                          \
  static double f_##name(double x, double a, double b) { \
    (void)a, (void)b;                                    \
    return expression;                                   \
  }
QIR_F(exp, exp(x))
QIR_F(log, log(x))
QIR_F(sqrt, sqrt(x))
QIR_F(reciprocal, 1 / x)
QIR_F(floor, floor(x))
QIR_F(ceil, ceil(x))
QIR_F(round, rint(x))
QIR_F(trunc, trunc(x))
QIR_F(sin, sin(x))
QIR_F(cos, cos(x))
QIR_F(tan, tan(x))
QIR_F(asin, asin(x))
QIR_F(acos, acos(x))
QIR_F(atan, atan(x))
QIR_F(sinh, sinh(x))
QIR_F(cosh, cosh(x))
QIR_F(asinh, asinh(x))
QIR_F(acosh, acosh(x))
QIR_F(atanh, atanh(x))
QIR_F(exp2, exp2(x))
QIR_F(expm1, expm1(x))
QIR_F(log1p, log1p(x))
QIR_F(log2, log2(x))
QIR_F(log10, log10(x))
QIR_F(rsqrt, 1 / sqrt(x))
QIR_F(erf, erf(x))
QIR_F(erfc, erfc(x))
QIR_F(sign, sign(x))
QIR_F(neg, -x)
QIR_F(abs, fabs(x))
QIR_F(square, x *x)
QIR_F(sigmoid, logistic(x))
QIR_F(tanh, tanh(x))
QIR_F(softplus, softplus(x))
QIR_F(softsign, x / (1 + fabs(x)))
QIR_F(log_sigmoid, -softplus(-x))
QIR_F(mish, x *tanh(softplus(x)))
QIR_F(silu, x *logistic(a *x))
QIR_F(gelu, x * 0.5 * erfc(x * -0.7071067811865476))
QIR_F(gelu_tanh, x *logistic(2 * (0.7978845608028654 * (x + 0.044715 * x * x * x))))
QIR_F(elu, x > 0 ? x : a * expm1(x))
QIR_F(selu, b *(x > 0 ? x : a * expm1(x)))
QIR_F(hard_sigmoid, bounded(a *x + b, 0, 1))
QIR_F(hard_swish, x *bounded(x / 6 + 0.5, 0, 1))

typedef double (*function_fn)(double, double, double);
static const function_fn TABLE[QIR_FUNCTIONS] = {
    f_exp,   f_log,      f_sqrt,         f_reciprocal,  f_floor, f_ceil,  f_round,  f_trunc,
    f_sin,   f_cos,      f_tan,          f_asin,        f_acos,  f_atan,  f_sinh,   f_cosh,
    f_asinh, f_acosh,    f_atanh,        f_exp2,        f_expm1, f_log1p, f_log2,   f_log10,
    f_rsqrt, f_erf,      f_erfc,         f_sign,        f_neg,   f_abs,   f_square, f_sigmoid,
    f_tanh,  f_softplus, f_softsign,     f_log_sigmoid, f_mish,  f_silu,  f_gelu,   f_gelu_tanh,
    f_elu,   f_selu,     f_hard_sigmoid, f_hard_swish,
};

struct function {
  struct qir_prepared_function how;
  size_t size;
  int x, y;
};

/*
 * Rounds what a quick function finds, where all that lies as near as `room` is rounded to one
 * float: that is what the C library's result is rounded to. The others, one in a thousand and less,
 * are left to the C library, and where the quick one is 0 or NaN.
 */
static void settle(const struct qir_prepared_function *v, const float *x, float *y, size_t n) {
  enum { SOME = 256 };
  const struct qir_unary how = {v->how.a, v->how.b};
  double found[SOME];
  uint8_t open[SOME];
  for (; n; n -= n < SOME ? n : SOME, x += SOME, y += SOME) {
    const size_t count = n < SOME ? n : SOME;
    v->quick(&how, x, found, count);
    if (!v->kernel->settle(found, v->room, y, open, count)) continue;
    for (size_t i = 0; i < count; ++i)
      if (open[i]) y[i] = (float)TABLE[v->how.which]((double)x[i], v->how.a, v->how.b);
  }
}

void qir_function_apply(const struct qir_prepared_function *v, const float *x, float *y, size_t n) {
  const function_fn f = TABLE[v->how.which];
  if (v->quick)
    settle(v, x, y, n);
  else
    for (size_t i = 0; i < n; ++i) y[i] = (float)f((double)x[i], v->how.a, v->how.b);
}

struct qir_prepared_function qir_function_prepare(uint32_t isa, const struct qir_function *how) {
  const struct qir_unary_kernel *kernel = QIR_SELECT(qir_unary_kernels, isa);
  const struct {
    function_fn f;
    qir_near_fn quick;
    double room;
  } quick[] = {
      {f_erf, kernel->near_erf, 0x1p-40},
      {f_tanh, kernel->near_tanh, 0x1p-35},
      {f_gelu, kernel->near_gelu, 0x1p-40},
      {f_exp, kernel->near_exp, 0x1p-33},
      {f_elu, kernel->near_elu, 0x1p-33},
      {f_selu, kernel->near_selu, 0x1p-33},
      {f_softplus, kernel->near_softplus, 0x1p-33},
      {f_log_sigmoid, kernel->near_log_sigmoid, 0x1p-33},
      {f_sigmoid, kernel->near_sigmoid, 0x1p-33},
      {f_silu, kernel->near_silu, 0x1p-33},
      {f_mish, kernel->near_mish, 0x1p-33},
      {f_gelu_tanh, kernel->near_gelu_tanh, 0x1p-33},
  };
  struct qir_prepared_function made = {*how, kernel, NULL, 0};
  for (size_t i = 0; i < sizeof quick / sizeof *quick; ++i)
    if (quick[i].f == TABLE[how->which]) {
      made.quick = quick[i].quick;
      made.room = quick[i].room;
    }
  return made;
}

static void run_function(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct function *v = params;
  const size_t first = (size_t)task * CHUNK;
  qir_function_apply(&v->how, (const float *)buffers[v->x] + first, (float *)buffers[v->y] + first,
                     left(v->size, first));
}

int qir_function_make(uint32_t isa, const struct qir_function *how, size_t size, int x, int y,
                      struct qir_step *step) {
  struct function *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct function){qir_function_prepare(isa, how), size, x, y};
  *step = (struct qir_step){run_function, v, (long)((size + CHUNK - 1) / CHUNK), 0};
  return 1;
}

/* ---- casts ---- */

struct casting {
  enum qir_kind from, to;
  size_t size;
  int x, y;
};

/* Cut toward zero; what 32 or 64 bits do not hold, and NaN, is their least number. */
static int64_t whole(double x, int narrow) {
  const double cut = trunc(x), far = narrow ? 0x1p31 : 0x1p63;
  if (cut >= -far && cut < far) return (int64_t)cut;
  return narrow ? INT32_MIN : INT64_MIN;
}

#define QIR_EACH(from, to, expression) \
  {                                    \
    const from *p = (const from *)x;   \
    to *q = (to *)y;                   \
    for (size_t i = 0; i < n; ++i) {   \
      const from u = p[i];             \
      q[i] = (to)(expression);         \
    }                                  \
    return;                            \
  }
#define QIR_FROM_FLOAT(from)                                    \
  switch (kind) {                                               \
    case QIR_F32: QIR_EACH(from, float, u)                      \
    case QIR_F64: QIR_EACH(from, double, u)                     \
    case QIR_I8: QIR_EACH(from, int8_t, whole((double)u, 1))    \
    case QIR_U8: QIR_EACH(from, uint8_t, whole((double)u, 1))   \
    case QIR_I16: QIR_EACH(from, int16_t, whole((double)u, 1))  \
    case QIR_U16: QIR_EACH(from, uint16_t, whole((double)u, 1)) \
    case QIR_I32: QIR_EACH(from, int32_t, whole((double)u, 1))  \
    case QIR_U32: QIR_EACH(from, uint32_t, whole((double)u, 0)) \
    case QIR_I64: QIR_EACH(from, int64_t, whole((double)u, 0))  \
    default: QIR_EACH(from, uint8_t, u != 0)                    \
  }
#define QIR_FROM_WHOLE(from)                  \
  switch (kind) {                             \
    case QIR_F32: QIR_EACH(from, float, u)    \
    case QIR_F64: QIR_EACH(from, double, u)   \
    case QIR_I8:                              \
    case QIR_U8: QIR_EACH(from, uint8_t, u)   \
    case QIR_I16:                             \
    case QIR_U16: QIR_EACH(from, uint16_t, u) \
    case QIR_I32:                             \
    case QIR_U32: QIR_EACH(from, uint32_t, u) \
    case QIR_I64: QIR_EACH(from, int64_t, u)  \
    default: QIR_EACH(from, uint8_t, u != 0)  \
  }
#define QIR_CAST(type, from, body) \
  static void cast_##type(enum qir_kind kind, const char *x, char *y, size_t n) { body(from) }
QIR_CAST(f32, float, QIR_FROM_FLOAT)
QIR_CAST(f64, double, QIR_FROM_FLOAT)
QIR_CAST(i8, int8_t, QIR_FROM_WHOLE)
QIR_CAST(u8, uint8_t, QIR_FROM_WHOLE)
QIR_CAST(i16, int16_t, QIR_FROM_WHOLE)
QIR_CAST(u16, uint16_t, QIR_FROM_WHOLE)
QIR_CAST(i32, int32_t, QIR_FROM_WHOLE)
QIR_CAST(u32, uint32_t, QIR_FROM_WHOLE)
QIR_CAST(i64, int64_t, QIR_FROM_WHOLE)

typedef void (*cast_fn)(enum qir_kind, const char *, char *, size_t);
static const cast_fn CASTS[QIR_KINDS] = {cast_f32, cast_f64, cast_i8,  cast_u8,  cast_i16,
                                         cast_u16, cast_i32, cast_u32, cast_i64, cast_u8};
static const size_t SIZES[QIR_KINDS] = {4, 8, 1, 1, 2, 2, 4, 4, 8, 1};

static void run_cast(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct casting *v = params;
  const size_t first = (size_t)task * CHUNK;
  CASTS[v->from](v->to, (char *)buffers[v->x] + first * SIZES[v->from],
                 (char *)buffers[v->y] + first * SIZES[v->to], left(v->size, first));
}

int qir_cast_make(enum qir_kind from, enum qir_kind to, size_t size, int x, int y,
                  struct qir_step *step) {
  struct casting *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct casting){from, to, size, x, y};
  *step = (struct qir_step){run_cast, v, (long)((size + CHUNK - 1) / CHUNK), 0};
  return 1;
}

/* ---- quantized values ---- */

struct coding {
  struct qir_codes_shape s;
  enum qir_kind kind;
  int x, y;
  qir_quantizer_fn quantizer; /* of 8 bits */
  size_t parts;               /* of what shares a scale, a task each */
  struct {
    float scale;
    int32_t zero;
  } channels[];
};

static int32_t code_at(const void *x, enum qir_kind kind, size_t at) {
  switch (kind) {
    case QIR_I8: return ((const int8_t *)x)[at];
    case QIR_U8: return ((const uint8_t *)x)[at];
    case QIR_I16: return ((const int16_t *)x)[at];
    case QIR_U16: return ((const uint16_t *)x)[at];
    default: return ((const int32_t *)x)[at];
  }
}

static void numbers(const struct coding *v, void *const *buffers, size_t channel, float *scale,
                    int32_t *zero) {
  if (v->s.scale) {
    *scale = v->channels[channel].scale;
    *zero = v->channels[channel].zero;
    return;
  }
  *scale = *(const float *)buffers[v->s.scale_at];
  *zero = v->s.zero_at < 0 ? 0 : code_at(buffers[v->s.zero_at], v->kind, 0);
}

#define QIR_ENCODE_BY(type, rounded)                               \
  {                                                                \
    type *to = (type *)buffers[v->y] + first;                      \
    for (size_t i = 0; i < v->s.inner; ++i) {                      \
      const float value = x[i] / scale;                            \
      const float above = value > least ? value : least; /* NaN */ \
      const float inside = above < greatest ? above : greatest;    \
      to[i] = (type)((int32_t)rounded(inside) + zero);             \
    }                                                              \
    break;                                                         \
  }
#define QIR_ENCODE(type)                               \
  {                                                    \
    if (v->s.away) QIR_ENCODE_BY(type, qir_round_away) \
    QIR_ENCODE_BY(type, qir_round)                     \
  }

static void run_encode(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct coding *v = params;
  const size_t first = (size_t)task * v->s.inner;
  const float *x = (const float *)buffers[v->x] + first;
  float scale;
  int32_t zero;
  numbers(v, buffers, (size_t)task % v->s.channels, &scale, &zero);
  const float least = (float)(v->s.low - zero), greatest = (float)(v->s.high - zero);
  switch (v->kind) {
    case QIR_I8: QIR_ENCODE(int8_t)
    case QIR_U8: QIR_ENCODE(uint8_t)
    case QIR_I16: QIR_ENCODE(int16_t)
    default: QIR_ENCODE(uint16_t)
  }
}

#define QIR_DECODE(type)                                                                     \
  {                                                                                          \
    const type *from = (const type *)buffers[v->x] + first;                                  \
    for (size_t i = 0; i < v->s.inner; ++i) y[i] = (float)((int64_t)from[i] - zero) * scale; \
    break;                                                                                   \
  }

static void run_encode_bytes(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct coding *v = params;
  const size_t row = (size_t)task / v->parts, at = (size_t)task % v->parts * CHUNK;
  const size_t first = row * v->s.inner + at;
  struct qir_quantizer how = {
      .divide = 1, .away = v->s.away, .nan_far = 1, .low = v->s.low, .high = v->s.high};
  numbers(v, buffers, row % v->s.channels, &how.factor, &how.zero);
  v->quantizer(&how, (const float *)buffers[v->x] + first, (uint8_t *)buffers[v->y] + first,
               left(v->s.inner, at));
}

static void run_decode(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct coding *v = params;
  const size_t first = (size_t)task * v->s.inner;
  float *y = (float *)buffers[v->y] + first, scale;
  int32_t zero;
  numbers(v, buffers, (size_t)task % v->s.channels, &scale, &zero);
  switch (v->kind) {
    case QIR_I8: QIR_DECODE(int8_t)
    case QIR_U8: QIR_DECODE(uint8_t)
    case QIR_I16: QIR_DECODE(int16_t)
    case QIR_U16: QIR_DECODE(uint16_t)
    default: QIR_DECODE(int32_t)
  }
}

static int make_coding(enum qir_kind kind, const struct qir_codes_shape *how, int x, int y,
                       struct qir_step *step) {
  const size_t count = how->scale ? how->channels : 0;
  struct coding *v = qir_step_alloc(sizeof *v + count * sizeof v->channels[0]);
  if (!v) return 0;
  v->s = *how;
  v->kind = kind;
  v->x = x;
  v->y = y;
  for (size_t i = 0; i < count; ++i) {
    v->channels[i].scale = how->scale[i];
    v->channels[i].zero = how->zero[i];
  }
  v->parts = 1;
  step->params = v;
  step->scratch = 0;
  step->tasks = how->inner ? (long)(how->outer * how->channels) : 0;
  return 1;
}

int qir_encode_make(uint32_t isa, enum qir_kind to, const struct qir_codes_shape *how, int x, int y,
                    struct qir_step *step) {
  step->run = run_encode;
  if (!make_coding(to, how, x, y, step)) return 0;
  if (to == QIR_I8 || to == QIR_U8) {
    struct coding *v = step->params;
    v->quantizer = qir_quantizer_select(isa);
    v->parts = (how->inner + CHUNK - 1) / CHUNK;
    step->run = run_encode_bytes;
    step->tasks *= (long)v->parts;
  }
  return 1;
}

int qir_decode_make(enum qir_kind from, const struct qir_codes_shape *how, int x, int y,
                    struct qir_step *step) {
  step->run = run_decode;
  return make_coding(from, how, x, y, step);
}

/* ---- the scale of a range ---- */

struct choosing {
  qir_range_fn range;
  enum qir_kind kind;
  size_t size;
  int x, scale, zero, fault;
};

int *qir_choose_fault(void *params) { return &((struct choosing *)params)->fault; }

/* One task: the ends of a range are two numbers. */
static void run_choose(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch, (void)task;
  const struct choosing *v = params;
  float least = 0, most = 0;
  const int none = v->range(buffers[v->x], v->size, &least, &most);
  if (none) {
    __atomic_store_n(qir_choose_fault((void *)(uintptr_t)params), 1, __ATOMIC_RELAXED);
    return;
  }
  const float first = v->kind == QIR_U8 ? 0 : -128, last = first + 255;
  const float scale = most == least ? 1 : (most - least) / (last - first);
  const float start = first - least / scale;
  const float kept = start < first ? first : start > last ? last : start;
  const int32_t zero = (int32_t)(start != start ? last : rintf(kept));
  *(float *)buffers[v->scale] = scale;
  *(uint8_t *)buffers[v->zero] = (uint8_t)zero;
}

int qir_choose_make(uint32_t isa, enum qir_kind to, size_t size, int x, int scale, int zero,
                    struct qir_step *step) {
  struct choosing *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct choosing){qir_range_select(isa), to, size, x, scale, zero, 0};
  *step = (struct qir_step){run_choose, v, 1, 0};
  return 1;
}
