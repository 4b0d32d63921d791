#include "gemm.h"

#if defined(QIR_ARM64)
#include "arm_vectors.h"

enum { NR = 4, WIDE = 8 /* values of a row that are loaded at once */, MAX_ROWS = 8 };

/* The products of value `lane` of each row by the next v vectors of weights; see arm_neondot.c. */
#define STEP(lane)                                                                    \
  {                                                                                   \
    int16x4_t right[4];                                                               \
    UNROLL for (int j = 0; j < v; ++j) right[j] = vld1_s16(w + j * NR);               \
    UNROLL for (int r = 0; r < m; ++r) UNROLL for (int j = 0; j < v; ++j) acc[r][j] = \
        vmlal_laneq_s16(acc[r][j], right[j], left[r], lane);                          \
    w += v * NR;                                                                      \
    __asm__ volatile("" ::: "memory");                                                \
  }

/* Operands are 16-bit, for processors without dot products. */
QIR_INLINE void accumulate(const struct qir_gemm_block *b, size_t i, int m, int v,
                           int32x4_t acc[MAX_ROWS][4]) {
  const int16_t *w = b->panel;
  for (size_t t = 0; t < b->taps; ++t) {
    const int16_t *rows[MAX_ROWS];
    UNROLL for (int r = 0; r < m; ++r) rows[r] = b->rows[t * b->row_stride + i + (size_t)r];
    size_t p = 0;
    int16x8_t left[MAX_ROWS];
    for (; p + WIDE <= b->depth; p += WIDE) {
      UNROLL for (int r = 0; r < m; ++r) left[r] = vld1q_s16(rows[r] + p);
      STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7)
    }
    for (; p < b->depth; ++p) {
      UNROLL for (int r = 0; r < m; ++r) left[r] = vdupq_n_s16(rows[r][p]);
      STEP(0)
    }
  }
}

#include "arm_tiles.h" /* after what it uses */

PANELS

void qir_gemm_neon(const struct qir_gemm_block *b) { panels(b); }
#endif
