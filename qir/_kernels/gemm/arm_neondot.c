#include "gemm.h"

#if defined(QIR_ARM64)
#include "arm_vectors.h"

QIR_TARGET_BEGIN(QIR_NEONDOT_TARGET)

enum { NR = 4, KR = 4, WIDE = 16 /* values of a row that are loaded at once */, MAX_ROWS = 8 };

/*
 * The products of word `lane` of each row by the next v vectors of weights. No load of weights
 * moves up into the step before: gcc 12 would then have no registers left for the sums.
 */
#define STEP(lane)                                                                    \
  {                                                                                   \
    int8x16_t right[4];                                                               \
    UNROLL for (int j = 0; j < v; ++j) right[j] = vld1q_s8(w + j * NR * KR);          \
    UNROLL for (int r = 0; r < m; ++r) UNROLL for (int j = 0; j < v; ++j) acc[r][j] = \
        vdotq_laneq_s32(acc[r][j], right[j], left[r], lane);                          \
    w += v * NR * KR;                                                                 \
    __asm__ volatile("" ::: "memory");                                                \
  }

/* Bytes of A are made signed as they are read. */
QIR_INLINE void accumulate(const struct qir_gemm_block *b, size_t i, int m, int v,
                           int32x4_t acc[MAX_ROWS][4]) {
  const uint8x16_t flip = vdupq_n_u8(b->x_flip ^ 0x80);
  const int8_t *w = b->panel;
  for (size_t t = 0; t < b->taps; ++t) {
    const uint8_t *rows[MAX_ROWS];
    UNROLL for (int r = 0; r < m; ++r) rows[r] = b->rows[t * b->row_stride + i + (size_t)r];
    size_t p = 0;
    for (; p + WIDE <= b->depth; p += WIDE) {
      int8x16_t left[MAX_ROWS];
      UNROLL for (int r = 0; r < m; ++r) left[r] =
          vreinterpretq_s8_u8(veorq_u8(vld1q_u8(rows[r] + p), flip));
      STEP(0) STEP(1) STEP(2) STEP(3)
    }
    for (; p < b->depth; p += KR) {
      int8x16_t left[MAX_ROWS];
      UNROLL for (int r = 0; r < m; ++r) {
        uint32_t word;
        memcpy(&word, rows[r] + p, sizeof word);
        left[r] = vreinterpretq_s8_u8(veorq_u8(vreinterpretq_u8_u32(vdupq_n_u32(word)), flip));
      }
      STEP(0)
    }
  }
}

#include "arm_tiles.h" /* after what it uses */

PANELS

void qir_gemm_neondot(const struct qir_gemm_block *b) { panels(b); }

QIR_TARGET_END
#endif
