/* The epilogue of epilogue.h as plain loops, for the compiler to vectorize with the instructions
 * of the file that includes this; QIR_EPILOGUE_NAME is the function's name there. */

#include <math.h>

#include "epilogue.h"

#define ALWAYS static inline __attribute__((always_inline))

#if defined(QIR_FAULT_TAIL_EPILOGUE) /* never in a build to use, as in gemm.c */
#define QIR_TAIL(n) ((n) % 16 ? (n) - 1 : (n))
#else
#define QIR_TAIL(n) (n)
#endif

/* A NaN becomes the low end, as in qir_encode. */
ALWAYS uint8_t encoded(float v, float low, float high, int32_t zero) {
  v = v > low ? v : low;
  v = v < high ? v : high;
  return (uint8_t)((int32_t)qir_round(v) + zero);
}

/* ---- whole rows at once, of the two common kinds ---- */

/* fbgemm's: a bias in units of the sums, and one multiplier. */
ALWAYS void multiplied(const struct qir_epilogue *e, const float *restrict sums,
                       uint8_t *restrict y, size_t first, size_t n, int shared) {
  const float *restrict steps = e->steps + first, *restrict factor = e->factor + first;
  const float *restrict share = shared ? e->share + first : steps;
  const int32_t zero = e->code.zero;
  const float low = (float)(e->code.low - zero), high = (float)(e->code.high - zero);
  for (size_t j = 0; j < n; ++j) {
    const float v = shared ? fmaf(steps[j], share[j], sums[j]) : sums[j] + steps[j];
    y[j] = encoded(v * factor[j], low, high, zero);
  }
}

/* oneDNN's: floats with a bias, then the scale of the result and the zero point. */
ALWAYS void dequantized(const struct qir_epilogue *e, const float *restrict sums,
                        uint8_t *restrict y, size_t first, size_t n) {
  const float *restrict factor = e->factor + first, *restrict bias = e->bias + first;
  const float unit = e->unit, last = e->last, offset = e->shifted ? e->offset : -0.0f;
  const int32_t zero = e->code.zero;
  const float low = (float)(e->code.low - zero), high = (float)(e->code.high - zero);
  for (size_t j = 0; j < n; ++j)
    y[j] = encoded((sums[j] * unit * factor[j] + bias[j]) * last + offset, low, high, zero);
}

/* ---- step by step ---- */

ALWAYS void summed(const struct qir_epilogue *e, float *restrict v, const uint8_t *restrict codes,
                   size_t n) {
  const int32_t zero = e->summand_zero, most = e->summand_most, flip = e->summand_flip;
  const float scale = e->summand_scale;
  if (e->summand_fused) {
    for (size_t j = 0; j < n; ++j) {
      const int32_t code = (codes[j] ^ flip) - flip;
      v[j] = fmaf((float)((code < most ? code : most) - zero), scale, v[j]);
    }
  } else {
    for (size_t j = 0; j < n; ++j) {
      const int32_t code = (codes[j] ^ flip) - flip;
      v[j] += (float)((code < most ? code : most) - zero) * scale;
    }
  }
}

ALWAYS void scaled(const struct qir_epilogue *e, float *restrict v, size_t first, size_t n) {
  const float *restrict factor = e->factor + first, *restrict bias = e->bias;
  if (e->steps) {
    const float *restrict steps = e->steps + first;
    if (e->share) {
      const float *restrict share = e->share + first;
      for (size_t j = 0; j < n; ++j) v[j] = fmaf(steps[j], share[j], v[j]);
    } else {
      for (size_t j = 0; j < n; ++j) v[j] += steps[j];
    }
  }
  const float unit = e->unit;
  if (bias && e->bias_fused) {
    for (size_t j = 0; j < n; ++j) v[j] = fmaf(v[j] * unit, factor[j], bias[first + j]);
  } else {
    for (size_t j = 0; j < n; ++j) v[j] = v[j] * unit * factor[j];
    if (bias)
      for (size_t j = 0; j < n; ++j) v[j] += bias[first + j];
  }
}

ALWAYS void finished(const struct qir_epilogue *e, float *restrict v, size_t n) {
  if (e->bounded) {
    const float least = e->least, most = e->most;
    for (size_t j = 0; j < n; ++j) {
      v[j] = v[j] < least ? least : v[j];
      v[j] = v[j] > most ? most : v[j];
    }
  }
  const float last = e->last, offset = e->offset;
  if (e->divide)
    for (size_t j = 0; j < n; ++j) v[j] /= last;
  else
    for (size_t j = 0; j < n; ++j) v[j] *= last;
  if (e->shifted)
    for (size_t j = 0; j < n; ++j) v[j] += offset;
}

ALWAYS void any_row(const struct qir_epilogue *e, const struct qir_epilogue_rows *r, size_t i,
                    size_t n) {
  float *restrict v = r->sums + i * r->stride;
  scaled(e, v, r->first, n);
  if (e->summand >= 0) summed(e, v, r->summand + i * r->summand_stride, n);
  finished(e, v, n);
  if (e->to_float) {
    float *restrict y = (float *)r->y + i * r->y_stride;
    for (size_t j = 0; j < n; ++j) y[j] = v[j];
    return;
  }
  uint8_t *restrict y = (uint8_t *)r->y + i * r->y_stride;
  const int32_t zero = e->code.zero;
  const float low = (float)(e->code.low - zero), high = (float)(e->code.high - zero);
  for (size_t j = 0; j < n; ++j) y[j] = encoded(v[j], low, high, zero);
}

/* ---- multipliers of 31 bits ---- */

ALWAYS uint8_t bounded(int64_t v, const struct qir_code *to) {
  v += to->zero;
  v = v > to->low ? v : to->low;
  return (uint8_t)(v < to->high ? v : to->high);
}

ALWAYS void rounded_twice(const struct qir_epilogue *e, const float *restrict sums,
                          uint8_t *restrict y, size_t first, size_t n) {
  const int32_t *restrict fixed = e->fixed + first, *restrict shift = e->shift + first;
  const int32_t *restrict away = e->away + first;
  for (size_t j = 0; j < n; ++j) {
    const int32_t left = shift[j] > 0 ? shift[j] : 0, right = shift[j] < 0 ? -shift[j] : 0;
    const int32_t shifted = (int32_t)((uint32_t)(int32_t)sums[j] << left);
    const int64_t product = (int64_t)shifted * fixed[j];
    const int32_t high = (int32_t)((product + (1ll << 30)) >> 31);
    const int32_t mask = (int32_t)((1u << right) - 1);
    const int32_t half = (mask >> 1) + (away[j] & (high < 0));
    y[j] = bounded((high >> right) + ((high & mask) > half), &e->code);
  }
}

ALWAYS void rounded_once(const struct qir_epilogue *e, const float *restrict sums,
                         uint8_t *restrict y, size_t first, size_t n) {
  const int32_t *restrict fixed = e->fixed + first, *restrict shift = e->shift + first;
  for (size_t j = 0; j < n; ++j) {
    const int32_t right = 31 - shift[j];
    y[j] = bounded(((int64_t)sums[j] * fixed[j] + (1ll << (right - 1))) >> right, &e->code);
  }
}

void QIR_EPILOGUE_NAME(const struct qir_epilogue *e, const struct qir_epilogue_rows *r) {
  const size_t n = QIR_TAIL(r->columns);
  const int plain = e->summand < 0 && !e->bounded && !e->divide && !e->to_float;
  const int multiplies =
      plain && e->steps && !e->bias && !e->shifted && e->unit == 1 && e->last == 1;
  const int dequantizes = plain && !e->steps && e->bias && !e->bias_fused;
  for (size_t i = 0; i < r->rows; ++i) {
    const float *sums = r->sums + i * r->stride;
    if (e->fixed && e->once)
      rounded_once(e, sums, (uint8_t *)r->y + i * r->y_stride, r->first, n);
    else if (e->fixed)
      rounded_twice(e, sums, (uint8_t *)r->y + i * r->y_stride, r->first, n);
    else if (multiplies && e->share)
      multiplied(e, sums, (uint8_t *)r->y + i * r->y_stride, r->first, n, 1);
    else if (multiplies)
      multiplied(e, sums, (uint8_t *)r->y + i * r->y_stride, r->first, n, 0);
    else if (dequantizes)
      dequantized(e, sums, (uint8_t *)r->y + i * r->y_stride, r->first, n);
    else
      any_row(e, r, i, n);
  }
}

#undef ALWAYS
#undef QIR_TAIL
#undef QIR_EPILOGUE_NAME
