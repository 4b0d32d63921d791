/*
 * The kernels of unary.h as plain loops, for the compiler to vectorize with the instructions of the
 * file that includes this; QIR_NAME(relu) is the name of one there.
 */

#include <math.h>

#include "rows/power.h"
#include "unary.h"

enum { LANES = 16 };

/* erfc(x) for x >= 0 or NaN, to nine digits: exp(-x * x) times a function of 1 / (1 + x / 2). */
QIR_INLINE_BODY double upper(double size) {
  const double x = size > 15 ? 15 : size;
  const double t = 1 / (1 + 0.5 * x), u = (t - 0.5588235294117647) * (1 / 0.4411764705882353);
  double p = 0x1.d5254996e0b55p-25;
  p = p * u + -0x1.a6462d45cec5cp-24;
  p = p * u + -0x1.57d99e9d14afep-22;
  p = p * u + 0x1.2f68754215744p-20;
  p = p * u + -0x1.126c640a0e844p-23;
  p = p * u + -0x1.a10563492bdffp-18;
  p = p * u + 0x1.a5a0b2a41e39ap-17;
  p = p * u + 0x1.1b10807bd4e58p-16;
  p = p * u + -0x1.ddf9d25e5f87cp-14;
  p = p * u + 0x1.83683f9432b91p-15;
  p = p * u + 0x1.b3ee6588d105dp-11;
  p = p * u + -0x1.2071d66793758p-10;
  p = p * u + -0x1.e96cd77c2897ap-8;
  p = p * u + 0x1.1f5231bb1107cp-7;
  p = p * u + 0x1.cf1d3f9147242p-4;
  p = p * u + 0x1.54c28537bcf67p-2;
  p = p * u + 0x1.1b39a52d4013ap-1;
  return size > 15 ? 0 : p * t * power(-x * x);
}

/* erf(x) by its series, for |x| <= 1. */
QIR_INLINE_BODY double middle(double x) {
  const double s = x * x;
  double p = 0x1.f683ae4a97007p-42;
  p = p * s + -0x1.d8453cb0c46eap-38;
  p = p * s + 0x1.9e6ad5e55a730p-34;
  p = p * s + -0x1.51d7181c5d36cp-30;
  p = p * s + 0x1.fcc5720624c1cp-27;
  p = p * s + -0x1.5f742ec43e71ap-23;
  p = p * s + 0x1.b9e6c9dc651a2p-20;
  p = p * s + -0x1.f4d25c3e0c2ebp-17;
  p = p * s + 0x1.f9a326f9b89b7p-14;
  p = p * s + -0x1.c02db40040b85p-11;
  p = p * s + 0x1.565bcd0e6a53fp-8;
  p = p * s + -0x1.b82ce31288b51p-6;
  p = p * s + 0x1.ce2f21a042be2p-4;
  p = p * s + -0x1.812746b0379e7p-2;
  p = p * s + 0x1.20dd750429b6dp+0;
  return p * x;
}

QIR_INLINE_BODY double error(double x) {
  const double size = fabs(x), near = middle(size > 1 ? 1 : size), far = 1 - upper(size);
  const double y = size > 1 ? far : near;
  return x != x ? x : x < 0 ? -y : y;
}

QIR_INLINE_BODY double logistic(double x) {
  const double small = fabs(x) > 700 ? 0 : power(-fabs(x));
  return (x < 0 ? small : 1.0) / (1.0 + small);
}

/* By two terms of the series where exp(-2 x) is nearly 1. */
QIR_INLINE_BODY double tangent(double x) {
  const double size = fabs(x), small = power(-2 * size), far = (1 - small) / (1 + small);
  const double near = size * (1 - size * size / 3);
  const double y = size < 0x1p-9 ? near : far;
  return x != x ? x : x < 0 ? -y : x > 0 ? y : x;
}

QIR_INLINE_BODY double normal(double x) {
  const double tail = upper(fabs(x) * 0x1.6a09e667f3bcdp-1);
  return x * 0.5 * (x < 0 ? tail : 2 - tail);
}

QIR_INLINE_BODY double kept(double x, double low, double high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

void QIR_NAME(bound)(const struct qir_unary *how, const float *restrict x, float *restrict y,
                     size_t n) {
  const float low = (float)how->a, high = (float)how->b;
  for (size_t i = 0; i < n; ++i) {
    const float above = x[i] < low ? low : x[i];
    y[i] = above > high ? high : above;
  }
}

#define QIR_UNARY_BODY(op, expression)                                                       \
  void QIR_NAME(op)(const struct qir_unary *how, const float *restrict x, float *restrict y, \
                    size_t n) {                                                              \
    const double a = how->a, b = how->b;                                                     \
    (void)a;                                                                                 \
    (void)b;                                                                                 \
    for (size_t i = 0; i < n; ++i) {                                                         \
      const double v = (double)x[i];                                                         \
      const float made = (float)(expression);                                                \
      y[i] = made != made ? NAN : made; /* of one sign everywhere */                         \
    }                                                                                        \
  }
QIR_UNARY_BODY(sigmoid, logistic(v))
QIR_UNARY_BODY(tanh, tangent(v))
QIR_UNARY_BODY(erf, error(v))
QIR_UNARY_BODY(gelu, normal(v))
QIR_UNARY_BODY(silu, v *logistic(v))
QIR_UNARY_BODY(sqrt, sqrt(v))
QIR_UNARY_BODY(square, v *v)
QIR_UNARY_BODY(hard_sigmoid, kept(a *v + b, 0, 1))
QIR_UNARY_BODY(hard_swish, v *kept(v / 6 + 0.5, 0, 1))
#undef QIR_UNARY_BODY

void QIR_NAME(most)(const float *restrict x, float *restrict y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = x[i] > y[i] || x[i] != x[i] ? x[i] : y[i];
}

double QIR_NAME(sum)(const float *restrict x, size_t n) {
  const size_t whole = n / LANES * LANES;
  double lanes[LANES] = {0};
  for (size_t i = 0; i < whole; i += LANES)
    for (size_t l = 0; l < LANES; ++l) lanes[l] += (double)x[i + l];
  for (size_t l = 0; l < n - whole; ++l) lanes[l] += (double)x[whole + l];
  for (size_t half = LANES / 2; half; half /= 2)
    for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}
