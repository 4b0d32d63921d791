/*
 * The kernels of unary.h as plain loops, for the compiler to vectorize with the instructions of the
 * file that includes this; QIR_NAME(relu) is the name of one there.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "unary.h"

enum { LANES = 16 };

#define QIR_INLINE_BODY static inline __attribute__((always_inline))

/* x = k * ln(2) + rest with |rest| <= ln(2) / 2, and scale = 2^k, for x in [-700, 700] or NaN. */
struct reduced {
  double rest, scale;
};
QIR_INLINE_BODY struct reduced reduce(double x) {
  const double shift = 6755399441055744.0; /* 1.5 * 2^52: numbers of this size have no fraction */
  const double shifted = fma(x, 1.4426950408889634, shift), k = shifted - shift;
  uint64_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 1023) << 52; /* the low bits of `shifted` are k */
  double scale;
  memcpy(&scale, &bits, sizeof scale);
  return (struct reduced){fma(k, -0x1.62e42fefa39efp-1, x), scale};
}

/* (exp(r) - 1) / r by its series, of which `last` is the factor of r^8. */
QIR_INLINE_BODY double power_slope(double last, double r) {
  double p = fma(last, r, 1.0 / 40320);
  p = fma(p, r, 1.0 / 5040);
  p = fma(p, r, 1.0 / 720);
  p = fma(p, r, 1.0 / 120);
  p = fma(p, r, 1.0 / 24);
  p = fma(p, r, 1.0 / 6);
  p = fma(p, r, 1.0 / 2);
  return fma(p, r, 1.0);
}

/* exp(x) for x <= 0 or NaN, within 2^-43 of its value; 0 below -700. */
QIR_INLINE_BODY double close_power(double x) {
  const struct reduced by = reduce(x < -700 ? -700 : x);
  const double last = fma(fma(1.0 / 39916800, by.rest, 1.0 / 3628800), by.rest, 1.0 / 362880);
  const double p = fma(power_slope(last, by.rest), by.rest, 1.0);
  return x < -700 ? 0 : p * by.scale;
}

/* exp(x) for x <= 700 or NaN, within 2^-36 of its value; 0 below -700. */
QIR_INLINE_BODY double power(double x) {
  const struct reduced by = reduce(x < -700 ? -700 : x);
  const double p = fma(power_slope(1.0 / 362880, by.rest), by.rest, 1.0);
  return x < -700 ? 0 : p * by.scale;
}

/* exp(x) - 1 for x <= 0 or NaN, within 2^-35 of its value. */
QIR_INLINE_BODY double power_less_one(double x) {
  const struct reduced by = reduce(x < -700 ? -700 : x);
  const double slope = power_slope(fma(1.0 / 3628800, by.rest, 1.0 / 362880), by.rest);
  /* Where x is small, the scale is 1 and nothing is lost. */
  return fma(slope * by.rest, by.scale, by.scale - 1);
}

/* log(1 + s) for s in [0, 1] or NaN, within 2^-35 of its value: 2 atanh(s / (2 + s)), a series. */
QIR_INLINE_BODY double log_one_more(double s) {
  const double z = s / (2 + s), q = z * z;
  double p = 2.0 / 23;
  p = fma(p, q, 2.0 / 21);
  p = fma(p, q, 2.0 / 19);
  p = fma(p, q, 2.0 / 17);
  p = fma(p, q, 2.0 / 15);
  p = fma(p, q, 2.0 / 13);
  p = fma(p, q, 2.0 / 11);
  p = fma(p, q, 2.0 / 9);
  p = fma(p, q, 2.0 / 7);
  p = fma(p, q, 2.0 / 5);
  p = fma(p, q, 2.0 / 3);
  p = fma(p, q, 2.0);
  return p * z;
}

/* erfc(x) for x >= 0 or NaN, within 2^-42 of its value: exp(-x * x) times a function of 1 / (1 + x
 * / 2). This polynomial and that of erf interpolate where Chebyshev's are zero. */
QIR_INLINE_BODY double upper(double size) {
  const double x = size > 15 ? 15 : size;
  const double t = 1 / (1 + 0.5 * x), u = (t - 0.5588235294117647) * (1 / 0.4411764705882353);
  double p = -0x1.3ec501977b2d9p-27;
  p = fma(p, u, -0x1.87a4e29a007c2p-29);
  p = fma(p, u, 0x1.9dd54b5b6e943p-24);
  p = fma(p, u, -0x1.7241ef123bab3p-24);
  p = fma(p, u, -0x1.abda63d7cfcb9p-22);
  p = fma(p, u, 0x1.29b7f3973f2d6p-20);
  p = fma(p, u, -0x1.a26ff3cfae16ap-25);
  p = fma(p, u, -0x1.9fb34278f2ea8p-18);
  p = fma(p, u, 0x1.a410951444438p-17);
  p = fma(p, u, 0x1.1ae3cbca870e1p-16);
  p = fma(p, u, -0x1.dde884676e30bp-14);
  p = fma(p, u, 0x1.836ef453a526dp-15);
  p = fma(p, u, 0x1.b3edf9ebcb3b0p-11);
  p = fma(p, u, -0x1.2071def08c128p-10);
  p = fma(p, u, -0x1.e96cd62cf31c1p-8);
  p = fma(p, u, 0x1.1f5231ce92f00p-7);
  p = fma(p, u, 0x1.cf1d3f907e20ep-4);
  p = fma(p, u, 0x1.54c28537b9b69p-2);
  p = fma(p, u, 0x1.1b39a52d403b3p-1);
  return size > 15 ? 0 : p * t * close_power(-x * x);
}

/* erf(x) within 2^-43 of its value: x times a polynomial in x^2 up to 4, where f32 has 1. */
QIR_INLINE_BODY double error(double x) {
  const double above = x < -4 ? -4 : x, size = above > 4 ? 4 : above;
  const double u = fma(size * size, 0.125, -1);
  double p = -0x1.ffef2bb611fc2p-22;
  p = fma(p, u, 0x1.99629bc9271fap-20);
  p = fma(p, u, -0x1.effd8ad23ca97p-20);
  p = fma(p, u, 0x1.46a885797d93dp-18);
  p = fma(p, u, -0x1.46bad4c89de10p-16);
  p = fma(p, u, 0x1.abc8861189d8fp-15);
  p = fma(p, u, -0x1.e9ba0bde4bfe8p-14);
  p = fma(p, u, 0x1.1dadbe34ae020p-12);
  p = fma(p, u, -0x1.41aec5471e8a6p-11);
  p = fma(p, u, 0x1.535f7332bf0afp-10);
  p = fma(p, u, -0x1.51e6147b00561p-9);
  p = fma(p, u, 0x1.3e06cfa0506c3p-8);
  p = fma(p, u, -0x1.1a02d2f2153cbp-7);
  p = fma(p, u, 0x1.d63727e475de2p-7);
  p = fma(p, u, -0x1.7034ec83b3ee5p-6);
  p = fma(p, u, 0x1.0ed515703ba75p-5);
  p = fma(p, u, -0x1.76e8654bad868p-5);
  p = fma(p, u, 0x1.ea97f3a51a1bdp-5);
  p = fma(p, u, -0x1.3215d8b28d6ecp-4);
  p = fma(p, u, 0x1.717efc681b7c7p-4);
  p = fma(p, u, -0x1.b92e95c1acc28p-4);
  p = fma(p, u, 0x1.0dabaf063f5a8p-3);
  p = fma(p, u, -0x1.69a0ccda3de95p-3);
  p = fma(p, u, 0x1.6a040781a4867p-2);
  return p * size;
}

/* exp(x) for x <= 0 or NaN in f32, within 0.3 units of its last place: (value + low) * first *
 * second, of which the value is in [0.7, 1.42]; 0 below -110. */
struct scaled {
  float value, low, first, second;
};
QIR_INLINE_BODY struct scaled short_power(float x) {
  const float shift = 12582912.0f; /* 1.5 * 2^23: numbers of this size have no fraction */
  const float kept = x < -110 ? -110 : x;
  const float shifted = fmaf(kept, 1.44269504f, shift), k = shifted - shift;
  const float r = fmaf(k, 0x1.bd0106p-13f, fmaf(k, -0x1.63p-1f, kept)); /* ln(2) in two parts */
  float q = 1.0f / 5040;
  q = fmaf(q, r, 1.0f / 720);
  q = fmaf(q, r, 1.0f / 120);
  q = fmaf(q, r, 1.0f / 24);
  q = fmaf(q, r, 1.0f / 6);
  q = fmaf(q, r, 0.5f);
  const float rest = fmaf(r * r, q, r), y = 1 + rest;
  int32_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  const int32_t whole = bits - 0x4b400000, half = whole >> 1; /* 2^whole may be no normal number */
  const int32_t one = (int32_t)((uint32_t)(half + 127) << 23);
  const int32_t other = (int32_t)((uint32_t)(whole - half + 127) << 23);
  float first, second;
  memcpy(&first, &one, sizeof first);
  memcpy(&second, &other, sizeof second);
  return (struct scaled){y, rest - (y - 1), x < -110 ? 0 : first, second};
}

/* 1 / (1 + small), the second a correction of the first; small is in [0, 1] or NaN. */
struct quotient {
  float high, low;
};
QIR_INLINE_BODY struct quotient share(float small) {
  const float sum = 1 + small, rest = small - (sum - 1), high = 1 / sum;
  return (struct quotient){high, high * fmaf(-high, rest, fmaf(-high, sum, 1))};
}

/*
 * Functions of exp(-|x|) by stages over some numbers: what one needs of the other is a long chain,
 * and more of these chains than the processor sees at a time run side by side in short loops.
 *
 * exp(-|x|) is short_power's, of which 2^64 times is normal: so the power of two is added to the
 * exponent, and what is not normal is rounded once. Of NaN it is any number.
 */
enum { STAGE = 256 };

/* exp(-|x|) = exp(rest) * 2^(whole - 64), of which only the last 9 bits of `whole` count. */
QIR_INLINE_BODY void reduce_power(const float *restrict x, float *restrict rest,
                                  uint32_t *restrict whole, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const float shift = 12582912.0f + 64; /* numbers of this size have no fraction */
    const float size = -fabsf(x[i]), kept = size > -110 ? size : -110;
    const float shifted = fmaf(kept, 1.44269504f, shift), k = shifted - shift;
    memcpy(&whole[i], &shifted, sizeof shifted);
    rest[i] = fmaf(k, 0x1.bd0106p-13f, fmaf(k, -0x1.63p-1f, kept)); /* ln(2) in two parts */
  }
}

/* exp(r) - 1 */
QIR_INLINE_BODY float power_rest(float r) {
  float q = 1.0f / 5040;
  q = fmaf(q, r, 1.0f / 720);
  q = fmaf(q, r, 1.0f / 120);
  q = fmaf(q, r, 1.0f / 24);
  q = fmaf(q, r, 1.0f / 6);
  q = fmaf(q, r, 0.5f);
  return fmaf(r * r, q, r);
}

/* x * 2^(whole - 64), rounded once */
QIR_INLINE_BODY float scaled_by(float x, uint32_t whole) {
  uint32_t bits = (whole << 23) + (127u << 23);
  float scale;
  memcpy(&scale, &bits, sizeof bits);
  return x * scale * 0x1p-64f;
}

/* 1 / (1 + exp(-x)) */
QIR_INLINE_BODY void logistic(const float *restrict x, float *restrict y, size_t n) {
  float rest[STAGE], small[STAGE];
  uint32_t whole[STAGE];
  reduce_power(x, rest, whole, n);
  for (size_t i = 0; i < n; ++i) small[i] = scaled_by(1 + power_rest(rest[i]), whole[i]);
  for (size_t i = 0; i < n; ++i) {
    const float above = x[i] < 0 ? small[i] : 1;
    const struct quotient by = share(small[i]);
    const float made = fmaf(above, by.high, above * by.low);
    y[i] = x[i] != x[i] ? NAN : made;
  }
}

/* x * logistic(x), of which the product is rounded once. */
QIR_INLINE_BODY void weighted(const float *restrict x, float *restrict y, size_t n) {
  float rest[STAGE], power[STAGE], small[STAGE];
  uint32_t whole[STAGE];
  reduce_power(x, rest, whole, n);
  for (size_t i = 0; i < n; ++i) {
    rest[i] = power_rest(rest[i]);
    power[i] = 1 + rest[i];
    small[i] = scaled_by(power[i], whole[i]);
  }
  for (size_t i = 0; i < n; ++i) {
    const struct quotient by = share(small[i]);
    const float low = rest[i] - (power[i] - 1); /* of the power */
    const float above = x[i] < -110 ? 0 : x[i] < 0 ? power[i] : 1, below = x[i] < 0 ? low : 0;
    const float product = x[i] * above;
    const float lost = fmaf(x[i], below, fmaf(x[i], above, -product));
    const float near = fmaf(product, by.high, fmaf(product, by.low, lost * by.high));
    const float tiny = scaled_by(near, whole[i]), made = x[i] < 0 ? tiny : near;
    const float inside = product == 0 ? product : made;
    const float full = x[i] > 88 ? x[i] : inside;
    y[i] = full != full ? NAN : full;
  }
}

/*
 * erf(x) within a unit of its last place: x * (1 + a polynomial in x^2) up to 0.93, and from there
 * 1 - exp(|x| * (a polynomial in |x| - 1)), as erfc is nearly an exponential. Both polynomials are
 * the best approximations of their degree. From 3.95 it is 1.
 */
QIR_INLINE_BODY void error_short(const float *restrict x, float *restrict y, size_t n) {
  float tail[STAGE];
  for (size_t i = 0; i < n; ++i) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: numbers of this size have no fraction */
    const float size = fabsf(x[i]), t = size < 3.95f ? size : 3.95f;
    float p = -0x1.78dd98p-17f;
    p = fmaf(p, t, 0x1.527c6cp-12f);
    p = fmaf(p, t, -0x1.dd6cdap-9f);
    p = fmaf(p, t, 0x1.85515ep-6f);
    p = fmaf(p, t, -0x1.b32574p-4f);
    p = fmaf(p, t, -0x1.45328ep-1f);
    p = fmaf(p, t, -0x1.0778dcp-3f);
    const float power = fmaf(p, t, -t), shifted = fmaf(power, 1.44269504f, shift);
    const float k = shifted - shift;
    const float r = fmaf(k, 0x1.bd0106p-13f, fmaf(k, -0x1.63p-1f, power));
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23; /* the low bits of `shifted` are k, of -26 to 0 */
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    tail[i] = fmaf(power_rest(r), scale, scale);
  }
  for (size_t i = 0; i < n; ++i) {
    const float s = x[i] * x[i], far = copysignf(1 - tail[i], x[i]);
    float q = 0x1.5cd4aap-14f;
    q = fmaf(q, s, -0x1.aa3f2cp-11f);
    q = fmaf(q, s, 0x1.54c7f4p-8f);
    q = fmaf(q, s, -0x1.b80e90p-6f);
    q = fmaf(q, s, 0x1.ce2e0ap-4f);
    q = fmaf(q, s, -0x1.812742p-2f);
    q = fmaf(q, s, 0x1.06eba8p-3f);
    const float made = fabsf(x[i]) < 0.93f ? fmaf(x[i], q, x[i]) : far;
    y[i] = x[i] != x[i] ? NAN : made;
  }
}

/* By two terms of the series where exp(-2 x) is nearly 1. */
QIR_INLINE_BODY double tangent(double x) {
  const double size = fabs(x), small = close_power(-2 * size), far = (1 - small) / (1 + small);
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
QIR_UNARY_BODY(tanh, tangent(v))
QIR_UNARY_BODY(gelu, normal(v))
QIR_UNARY_BODY(sqrt, sqrt(v))
QIR_UNARY_BODY(square, v *v)
QIR_UNARY_BODY(hard_sigmoid, kept(a *v + b, 0, 1))
QIR_UNARY_BODY(leaky_relu, v < 0 ? a * v : v)
QIR_UNARY_BODY(abs, fabs(v))
#undef QIR_UNARY_BODY

QIR_INLINE_BODY double soft(double x) { return log_one_more(power(-fabs(x))) + (x > 0 ? x : 0); }

QIR_INLINE_BODY double gate(double x) {
  const double small = power(-fabs(x));
  return (x < 0 ? small : 1) / (1 + small);
}

/* x * tanh(log(1 + exp(x))), of which the tangent is a quotient of polynomials in exp(-|x|). */
QIR_INLINE_BODY double mish(double x) {
  const double w = power(-fabs(x)), below = w * (w + 2), above = fma(2, w, 1);
  return x * (x < 0 ? below / (below + 2) : above / fma(2 * w, w, above));
}

/* Functions before they are rounded, and of what is here alone. */
#define QIR_NEAR_BODY(op, expression)                                            \
  void QIR_NAME(near_##op)(const struct qir_unary *how, const float *restrict x, \
                           double *restrict y, size_t n) {                       \
    const double a = how->a, b = how->b;                                         \
    (void)a;                                                                     \
    (void)b;                                                                     \
    for (size_t i = 0; i < n; ++i) {                                             \
      const double v = (double)x[i];                                             \
      y[i] = expression;                                                         \
    }                                                                            \
  }
QIR_NEAR_BODY(tanh, tangent(v))
QIR_NEAR_BODY(erf, error(v))
QIR_NEAR_BODY(gelu, normal(v))
QIR_NEAR_BODY(exp, power(v > 700 ? 700 : v))
QIR_NEAR_BODY(elu, v > 0 ? v : a * power_less_one(v))
QIR_NEAR_BODY(selu, b *(v > 0 ? v : a * power_less_one(v)))
QIR_NEAR_BODY(softplus, soft(v))
QIR_NEAR_BODY(log_sigmoid, -soft(-v))
QIR_NEAR_BODY(sigmoid, gate(v))
QIR_NEAR_BODY(silu, v *gate(a *v))
QIR_NEAR_BODY(mish, mish(v))
QIR_NEAR_BODY(gelu_tanh, v *gate(2 * (0.7978845608028654 * (v + 0.044715 * v * v * v))))
#undef QIR_NEAR_BODY

/*
 * Rounds what a function found, and says where not all that lies as near as `room` of it is rounded
 * to one float, and where that is 0 or NaN. Returns whether there is such a place.
 */
int QIR_NAME(settle)(const double *restrict found, double room, float *restrict y,
                     uint8_t *restrict open, size_t n) {
  int any = 0;
  for (size_t i = 0; i < n; ++i) {
    const float low = (float)(found[i] * (1 - room)), high = (float)(found[i] * (1 + room));
    y[i] = low;
    open[i] = !(low == high) | (low == 0);
    any |= open[i];
  }
  return any;
}

/* x * min(max(x / 6 + 0.5, 0), 1): between -3 and 3 it is x * (x + 3) / 6, and the errors of the
 * sum, the product and the factor are added back. */
QIR_INLINE_BODY void hard_swish(const float *restrict x, float *restrict y, size_t n) {
  const float sixth = 1.0f / 6, rest = -0x1.555556p-28f; /* 1 / 6 in two parts */
  float above[STAGE], kept[STAGE]; /* bounds one by one, which are one instruction each */
  for (size_t i = 0; i < n; ++i) above[i] = x[i] > -3 ? x[i] : -3;
  for (size_t i = 0; i < n; ++i) kept[i] = above[i] < 3 ? above[i] : 3;
  for (size_t i = 0; i < n; ++i) {
    const float v = kept[i], sum = v + 3, product = v * sum;
    const float lost = fmaf(v, v - (sum - 3), fmaf(v, sum, -product));
    const float inside = fmaf(product, sixth, fmaf(product, rest, lost * sixth));
    const float upper = x[i] < 3 ? inside : x[i], made = x[i] > -3 ? upper : x[i] * 0.0f;
    y[i] = made != made ? NAN : made; /* of one sign everywhere */
  }
}

void QIR_NAME(hard_swish)(const struct qir_unary *how, const float *restrict x, float *restrict y,
                          size_t n) {
  (void)how;
  for (; n >= STAGE; n -= STAGE, x += STAGE, y += STAGE) hard_swish(x, y, STAGE);
  hard_swish(x, y, n);
}

void QIR_NAME(erf)(const struct qir_unary *how, const float *restrict x, float *restrict y,
                   size_t n) {
  (void)how;
  for (; n >= STAGE; n -= STAGE, x += STAGE, y += STAGE) error_short(x, y, STAGE);
  error_short(x, y, n);
}

void QIR_NAME(silu)(const struct qir_unary *how, const float *restrict x, float *restrict y,
                    size_t n) {
  (void)how;
  for (; n >= STAGE; n -= STAGE, x += STAGE, y += STAGE) weighted(x, y, STAGE);
  weighted(x, y, n);
}

void QIR_NAME(sigmoid)(const struct qir_unary *how, const float *restrict x, float *restrict y,
                       size_t n) {
  (void)how;
  for (; n >= STAGE; n -= STAGE, x += STAGE, y += STAGE) logistic(x, y, STAGE);
  logistic(x, y, n);
}

void QIR_NAME(normalize)(const struct qir_channel *how, const float *restrict x, float *restrict y,
                         size_t n) {
  const double mean = how->mean, slope = how->slope, shift = how->shift;
  for (size_t i = 0; i < n; ++i) y[i] = (float)(((double)x[i] - mean) * slope + shift);
}

void QIR_NAME(collect)(const float *restrict x, double *restrict y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] += (double)x[i];
}

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

void QIR_NAME(scale)(const float *restrict x, float *restrict y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = y[i] * x[i];
}

void QIR_NAME(plus)(const float *restrict x, float *restrict y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = y[i] + x[i];
}

void QIR_NAME(keep)(float low, float high, float *y, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const float above = y[i] < low ? low : y[i];
    y[i] = above > high ? high : above;
  }
}

/* `n` channels of `pixels` pixels, each `step` numbers from the next, in the lanes of sum(). */
void QIR_NAME(means)(const float *restrict x, size_t pixels, size_t step, size_t n,
                     float *restrict y) {
  double lanes[LANES][QIR_MEANS] = {{0}};
  if (n == QIR_MEANS)
    for (size_t i = 0; i < pixels; ++i)
      for (size_t c = 0; c < QIR_MEANS; ++c) lanes[i % LANES][c] += (double)x[i * step + c];
  else
    for (size_t i = 0; i < pixels; ++i)
      for (size_t c = 0; c < n; ++c) lanes[i % LANES][c] += (double)x[i * step + c];
  for (size_t half = LANES / 2; half; half /= 2)
    for (size_t l = 0; l < half; ++l)
      for (size_t c = 0; c < QIR_MEANS; ++c) lanes[l][c] += lanes[l + half][c];
  for (size_t c = 0; c < n; ++c) y[c] = (float)(lanes[0][c] / (double)pixels);
}
