/*
 * The kernels of rows.h as plain loops, for the compiler to vectorize with the instructions of the
 * file that includes this; QIR_NAME(softmax) is the name of one there.
 */

#include <math.h>
#include <string.h>

#include "rows.h"

#define QIR_INLINE_BODY static inline __attribute__((always_inline))

/* How many of the last numbers of a row there are. */
static inline size_t last(size_t left) {
#if defined(QIR_FAULT_TAIL_ROWS) /* never in a build to use, as in gemm.c */
  if (left) return left - 1;
#endif
  return left;
}

QIR_INLINE_BODY double fold(double lanes[QIR_LANES]) {
  for (size_t half = QIR_LANES / 2; half; half /= 2)
    for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

/* ---- layer norm ---- */

QIR_INLINE_BODY double mean_of(const float *x, size_t n) {
  const size_t whole = n / QIR_LANES * QIR_LANES;
  double lanes[QIR_LANES] = {0};
  for (size_t i = 0; i < whole; i += QIR_LANES)
    for (size_t l = 0; l < QIR_LANES; ++l) lanes[l] += (double)x[i + l];
  for (size_t l = 0; l < last(n - whole); ++l) lanes[l] += (double)x[whole + l];
  return fold(lanes) / (double)n;
}

QIR_INLINE_BODY double variance_of(const float *x, size_t n, double mean) {
  const size_t whole = n / QIR_LANES * QIR_LANES;
  double lanes[QIR_LANES] = {0};
  for (size_t i = 0; i < whole; i += QIR_LANES)
    for (size_t l = 0; l < QIR_LANES; ++l) {
      const double away = (double)x[i + l] - mean;
      lanes[l] += away * away;
    }
  for (size_t l = 0; l < n - whole; ++l) {
    const double away = (double)x[whole + l] - mean;
    lanes[l] += away * away;
  }
  return fold(lanes) / (double)n;
}

void QIR_NAME(layer_norm)(const struct qir_layer_norm *how, const float *restrict x,
                          float *restrict y) {
  const size_t n = how->width;
  const float *restrict gamma = how->gamma, *restrict beta = how->beta;
  const double mean = mean_of(x, n), size = sqrt(variance_of(x, n, mean) + how->eps);
  if (beta)
    for (size_t i = 0; i < n; ++i)
      y[i] = (float)(((double)x[i] - mean) / size * (double)gamma[i] + (double)beta[i]);
  else
    for (size_t i = 0; i < n; ++i) y[i] = (float)(((double)x[i] - mean) / size * (double)gamma[i]);
}

/* ---- softmax ---- */

/*
 * exp(x) for x <= 0 or NaN, within 2^-46 of its value: 2^k * exp(r) with |r| <= ln(2) / 2, by
 * twelve terms of the series. Below -700 it is exp(-700), which is nothing beside 1.
 */
QIR_INLINE_BODY double power(double x) {
  const double shift = 6755399441055744.0; /* 1.5 * 2^52: numbers of this size have no fraction */
  x = x < -700 ? -700 : x;
  const double shifted = fma(x, 1.4426950408889634, shift), k = shifted - shift;
  const double r = fma(k, -0x1.62e42fefa39efp-1, x);
  double p = 1.0 / 39916800;
  p = fma(p, r, 1.0 / 3628800);
  p = fma(p, r, 1.0 / 362880);
  p = fma(p, r, 1.0 / 40320);
  p = fma(p, r, 1.0 / 5040);
  p = fma(p, r, 1.0 / 720);
  p = fma(p, r, 1.0 / 120);
  p = fma(p, r, 1.0 / 24);
  p = fma(p, r, 1.0 / 6);
  p = fma(p, r, 0.5);
  p = fma(p, r, 1.0);
  p = fma(p, r, 1.0);
  uint64_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 1023) << 52; /* the low bits of `shifted` are k */
  double scale;
  memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}

/* The greatest number that is no NaN, in lanes: of one chain each would wait for the one before. */
QIR_INLINE_BODY float greatest(const float *x, size_t n) {
  const size_t whole = n / QIR_LANES * QIR_LANES;
  float lanes[QIR_LANES];
  for (size_t l = 0; l < QIR_LANES; ++l) lanes[l] = -INFINITY;
  for (size_t i = 0; i < whole; i += QIR_LANES)
    for (size_t l = 0; l < QIR_LANES; ++l) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  for (size_t l = 0; l < n - whole; ++l)
    lanes[l] = x[whole + l] > lanes[l] ? x[whole + l] : lanes[l];
  for (size_t half = QIR_LANES / 2; half; half /= 2)
    for (size_t l = 0; l < half; ++l)
      lanes[l] = lanes[l + half] > lanes[l] ? lanes[l + half] : lanes[l];
  return lanes[0];
}

void QIR_NAME(softmax)(const float *restrict x, size_t n, double *restrict powers,
                       float *restrict y) {
  const double top = (double)greatest(x, n);
  for (size_t i = 0; i < n; ++i) powers[i] = power((double)x[i] - top);
  const size_t whole = n / QIR_LANES * QIR_LANES;
  double lanes[QIR_LANES] = {0};
  for (size_t i = 0; i < whole; i += QIR_LANES)
    for (size_t l = 0; l < QIR_LANES; ++l) lanes[l] += powers[i + l];
  for (size_t l = 0; l < last(n - whole); ++l) lanes[l] += powers[whole + l];
  const double share = 1 / fold(lanes);
  for (size_t i = 0; i < n; ++i) y[i] = (float)(powers[i] * share);
}

/*
 * exp(x - top) in f32 within a unit of its last place, for x <= top or NaN: what the difference
 * loses to rounding is added to the exponent's rest. 2^64 times the power is normal down to
 * exp(-110), so that it is rounded once where it is not; below that it is nothing.
 */
QIR_INLINE_BODY float short_power(float x, float top) {
  const float shift = 12582912.0f + 64; /* 1.5 * 2^23: numbers of this size have no fraction */
  const float away = x - top, back = away - x;
  const float lost = (x - (away - back)) + (-top - back);
  const float kept = away < -110 ? -110 : away;
  const float shifted = fmaf(kept, 1.44269504f, shift), k = shifted - shift;
  const float whole = fmaf(k, 0x1.bd0106p-13f, fmaf(k, -0x1.63p-1f, kept)); /* ln(2) in two parts */
  const float r = away < -110 ? whole : whole + lost;
  float q = 1.0f / 5040;
  q = fmaf(q, r, 1.0f / 720);
  q = fmaf(q, r, 1.0f / 120);
  q = fmaf(q, r, 1.0f / 24);
  q = fmaf(q, r, 1.0f / 6);
  q = fmaf(q, r, 0.5f);
  const float rest = fmaf(r * r, q, r);
  uint32_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + (127u << 23); /* the low bits of `shifted` are k + 64 */
  float scale;
  memcpy(&scale, &bits, sizeof scale);
  return fmaf(rest, scale, scale) * 0x1p-64f;
}

void QIR_NAME(short_softmax)(const float *restrict x, size_t n, float *restrict powers,
                             float *restrict y) {
  const float top = greatest(x, n);
  for (size_t i = 0; i < n; ++i) powers[i] = short_power(x[i], top);
  const size_t whole = n / QIR_LANES * QIR_LANES;
  double lanes[QIR_LANES] = {0};
  for (size_t i = 0; i < whole; i += QIR_LANES)
    for (size_t l = 0; l < QIR_LANES; ++l) lanes[l] += (double)powers[i + l];
  for (size_t l = 0; l < last(n - whole); ++l) lanes[l] += (double)powers[whole + l];
  const double share = 1 / fold(lanes);
  for (size_t i = 0; i < n; ++i) y[i] = (float)((double)powers[i] * share);
}

/* ---- shares ---- */

void QIR_NAME(share)(const struct qir_share *how, const float *restrict v, uint8_t *restrict y,
                     size_t n) {
  const struct qir_code code = how->code;
  const float gain = how->gain, sum = how->sum;
  const uint8_t beyond = how->beyond;
  for (size_t i = 0; i < n; ++i) {
    const float real = v[i] * gain / sum;
    const uint8_t near = qir_encode(real, &code);
    y[i] = real < 2147483648.0f ? near : beyond;
  }
}

void QIR_NAME(share_wide)(const struct qir_share *how, const float *restrict v, uint8_t *restrict y,
                          size_t n) {
  const double high = how->code.high - how->code.zero;
  const double whole = 6755399441055744.0; /* 1.5 * 2^52, see qir_round */
  const double gain = (double)how->gain, sum = (double)how->sum;
  const int32_t zero = how->code.zero;
  for (size_t i = 0; i < n; ++i) {
    double real = (double)v[i] * gain / sum;
    real = real < high ? real : high;
    y[i] = (uint8_t)((int32_t)((real + whole) - whole) + zero);
  }
}

void QIR_NAME(share_inverse)(const struct qir_share *how, const float *restrict v,
                             uint8_t *restrict y, size_t n) {
  const float factor = 1.0f / (how->sum * how->gain);
  const int32_t zero = how->code.zero, low = how->code.low, high = how->code.high;
  for (size_t i = 0; i < n; ++i) {
    float real = v[i] * factor;
    real = real < 65536.0f ? real : 65536.0f; /* beyond all integers */
    const int32_t whole = (int32_t)real;
    int32_t code = whole + (real - (float)whole >= 0.5f) + zero;
    code = code > low ? code : low;
    y[i] = (uint8_t)(code < high ? code : high);
  }
}
