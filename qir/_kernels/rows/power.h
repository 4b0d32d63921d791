/* Included by bodies of kernels, into the instructions of each: so there is no guard. */

#include <stdint.h>
#include <string.h>

#undef QIR_INLINE_BODY
#define QIR_INLINE_BODY static inline __attribute__((always_inline))

/*
 * exp(x) for x <= 0 or NaN: 2^k * exp(r) with |r| <= ln(2) / 2, by thirteen terms of the series.
 * Below -700 it is exp(-700), which is nothing beside 1.
 */
QIR_INLINE_BODY double power(double x) {
  const double shift = 6755399441055744.0; /* 1.5 * 2^52: numbers of this size have no fraction */
  x = x < -700 ? -700 : x;
  const double shifted = x * 1.4426950408889634 + shift, k = shifted - shift;
  const double r = (x - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33;
  double p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  uint64_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 1023) << 52; /* the low bits of `shifted` are k */
  double scale;
  memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}
