#include "grouped.h"

#if defined(QIR_ARM64)
#include "arm_vectors.h"

QIR_TARGET_BEGIN(QIR_NEONDOT_TARGET)

enum { WORDS = 4, LANES = 4, BLOCK = WORDS * LANES, MOST = 4 /* pixels at once */ };

void qir_grouped_neondot_copy(const struct qir_grouped_copy *copy) {
  const uint8x16_t flip = vdupq_n_u8(copy->flip ^ 0x80);
  const uint8_t *x = copy->x;
  uint8_t *to = copy->to;
  for (size_t i = 0; i < copy->count; ++i, x += copy->stride, to += BLOCK)
    vst1q_u8(to, veorq_u8(qir_arm_load(x, copy->channels), flip));
}

/* The bytes of four words. */
QIR_INLINE uint8x16_t bytes_of(const int32_t *words) {
  const uint32x4_t first = vmulq_n_u32(vreinterpretq_u32_s32(vld1q_s32(words)), 0x04040404);
  return vreinterpretq_u8_u32(vaddq_u32(first, vdupq_n_u32(0x03020100)));
}

/* Sums t of a pixel are of channels t, 4 + t ...: reals and bytes are put in order. */
QIR_INLINE void store(const struct qir_grouped_run *run, size_t ox, const int32x4_t sum[LANES],
                      const struct qir_arm_code *code) {
  static const uint8_t order[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  const size_t at = ox * run->y_stride;
  float32x4_t real[4];
  qir_arm_scale(sum, run->multiplier, real);
  if (run->to_float) {
    const float32x4x4_t all = {{real[0], real[1], real[2], real[3]}};
    float row[BLOCK];
    vst4q_f32(row, all);
    memcpy((float *)run->y + at, row, (run->columns < BLOCK ? run->columns : BLOCK) * sizeof *row);
  } else {
    const uint8x16_t bytes = vqtbl1q_u8(qir_arm_encode(real, code), vld1q_u8(order));
    qir_arm_store((uint8_t *)run->y + at, bytes, run->columns);
  }
}

/* The m pixels from ox on. */
QIR_INLINE void tile(const struct qir_grouped_run *run, size_t ox, int m) {
  const struct qir_arm_code code = qir_arm_load_code(&run->code);
  int32x4_t acc[MOST][LANES];
  UNROLL for (int t = 0; t < LANES; ++t) UNROLL for (int r = 0; r < m; ++r) acc[r][t] =
      vld1q_s32(run->bias + t * WORDS);
  const int8_t *w = run->weights;
  const char *line = (const char *)run->x + ox * run->pixel;
  for (size_t ky = 0; ky < run->kh; ++ky, line += run->line) {
    const char *x = line;
    for (size_t kx = 0; kx < run->kw; ++kx, x += run->tap)
      for (size_t s = 0; s < run->steps; ++s, w += LANES * BLOCK) {
        const uint8x16_t index = bytes_of(run->index + s * WORDS);
        UNROLL for (int r = 0; r < m; ++r) {
          const int8_t *from = (const int8_t *)(x + (size_t)r * run->pixel);
          const int8x16_t left = vqtbl1q_s8(vld1q_s8(from), index);
          UNROLL for (int t = 0; t < LANES; ++t) acc[r][t] =
              vdotq_s32(acc[r][t], left, vld1q_s8(w + t * BLOCK));
        }
      }
  }
  UNROLL for (int r = 0; r < m; ++r) store(run, ox + (size_t)r, acc[r], &code);
}

void qir_grouped_neondot(const struct qir_grouped_run *run) {
  size_t ox = 0;
  for (; ox + 4 <= run->width; ox += 4) tile(run, ox, 4);
  if (ox + 2 <= run->width) {
    tile(run, ox, 2);
    ox += 2;
  }
  if (ox < run->width) tile(run, ox, 1);
}

QIR_TARGET_END
#endif
