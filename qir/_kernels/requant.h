#ifndef QIR_REQUANT_H
#define QIR_REQUANT_H

/*
 * code = clamp(rne(real) + zero, low, high), and real = f32(acc) * multiplier.
 *
 * The real number is clamped before it is rounded, to low - zero and high - zero,
 * which are whole: so nothing overflows, and the result is the same. A NaN becomes
 * `low`, because both comparisons below are written as MAXPS and MINPS do them.
 *
 * Codes of i8 are kept as u8 shifted by 128, that is with the highest bit flipped,
 * wherever it is the byte that is computed with: `flip` is 0x80 then, else 0.
 */

#include <math.h>
#include <stdint.h>

struct qir_code {
  int32_t zero, low, high; /* codes as written: of u8 0..255, of i8 -128..127 */
  uint8_t flip;            /* 0x80 for i8, 0 for u8 */
};

/* Rounds halves to even; |real| < 2^22. */
static inline float qir_round(float real) {
  const float whole = 12582912.0f; /* 1.5 * 2^23: numbers of this size have no fraction */
  return (real + whole) - whole;
}

/* Rounds halves away from zero: the number below 0.5 moves no other number past an integer. */
static inline float qir_round_away(float real) {
  return (float)(int32_t)(real + copysignf(0.49999997f, real));
}

static inline uint8_t qir_encode(float real, const struct qir_code *to) {
  const float low = (float)(to->low - to->zero), high = (float)(to->high - to->zero);
  real = real > low ? real : low;
  real = real < high ? real : high;
  return (uint8_t)((int32_t)qir_round(real) + to->zero);
}

/*
 * The same for kernels that convert to integers before they bound, their zero inside of the real:
 * CVTPS2DQ makes INT_MIN of what does not fit 32 bits, so 2^31 and above give `low` too.
 */
static inline uint8_t qir_encode_converted(float real, const struct qir_code *to) {
  return qir_encode(real < 2147483648.0f ? real : -2147483648.0f, to);
}

/*
 * Whether f32(sum) * multiplier fits 32 bits for each 32-bit sum that is at most `most` from zero:
 * then integers may be clamped in place of floats. With a multiplier of NaN it does not.
 */
static inline int qir_converts(uint64_t most, float multiplier) {
  const uint64_t end = (uint64_t)1 << 31;
  return (float)(most < end ? most : end) * fabsf(multiplier) < 1073741824.0f;
}

/* Whether the bounds of codes are those of their type. */
static inline int qir_spans(const struct qir_code *to) {
  return to->low + to->flip == 0 && to->high + to->flip == UINT8_MAX;
}

/* The value of a code byte. */
static inline int32_t qir_decode(uint8_t byte, uint8_t flip) {
  return (int32_t)(byte ^ flip) - flip;
}

#endif
