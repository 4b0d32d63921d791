#ifndef QIR_ARM_VECTORS_H
#define QIR_ARM_VECTORS_H

#include <arm_neon.h>
#include <string.h>

#include "isa.h"
#include "requant.h"

#define QIR_NEONDOT_TARGET "arch=armv8.2-a+dotprod"
#define UNROLL _Pragma("GCC unroll 16")

/* What qir_encode needs, in registers. */
struct qir_arm_code {
  float32x4_t low, high;
  uint8x16_t zero;
};

QIR_INLINE struct qir_arm_code qir_arm_load_code(const struct qir_code *to) {
  return (struct qir_arm_code){vdupq_n_f32((float)(to->low - to->zero)),
                               vdupq_n_f32((float)(to->high - to->zero)),
                               vdupq_n_u8((uint8_t)to->zero)};
}

/* FMAXNM takes the number where the other operand is a NaN: so a NaN becomes `low`. */
QIR_INLINE uint16x8_t qir_arm_round(float32x4_t real, const struct qir_arm_code *c) {
  return vreinterpretq_u16_s32(vcvtnq_s32_f32(vminnmq_f32(vmaxnmq_f32(real, c->low), c->high)));
}

/* Sixteen reals to the bytes of their codes: of the integers, the lowest bytes are kept. */
QIR_INLINE uint8x16_t qir_arm_encode(const float32x4_t real[4], const struct qir_arm_code *c) {
  const uint16x8_t a = vuzp1q_u16(qir_arm_round(real[0], c), qir_arm_round(real[1], c));
  const uint16x8_t b = vuzp1q_u16(qir_arm_round(real[2], c), qir_arm_round(real[3], c));
  return vaddq_u8(vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b)), c->zero);
}

/* Sixteen sums as reals. */
QIR_INLINE void qir_arm_scale(const int32x4_t sum[4], const float *multiplier,
                              float32x4_t real[4]) {
  UNROLL for (int i = 0; i < 4; ++i) real[i] =
      vmulq_f32(vcvtq_f32_s32(sum[i]), vld1q_f32(multiplier + 4 * i));
}

/* Sixteen bytes, of which the first n exist. */
QIR_INLINE uint8x16_t qir_arm_load(const uint8_t *x, size_t n) {
  if (n >= 16) return vld1q_u8(x);
  uint8_t tail[16] = {0};
  memcpy(tail, x, n);
  return vld1q_u8(tail);
}

/* Stores the first n of sixteen bytes. */
QIR_INLINE void qir_arm_store(uint8_t *y, uint8x16_t bytes, size_t n) {
  if (n >= 16) {
    vst1q_u8(y, bytes);
  } else {
    uint8_t tail[16];
    vst1q_u8(tail, bytes);
    memcpy(y, tail, n);
  }
}

/* Stores the first n of sixteen reals. */
QIR_INLINE void qir_arm_store_f32(float *y, const float32x4_t real[4], size_t n) {
  float tail[16], *to = n >= 16 ? y : tail;
  UNROLL for (int i = 0; i < 4; ++i) vst1q_f32(to + 4 * i, real[i]);
  if (n < 16) memcpy(y, tail, n * sizeof *y);
}

#endif
