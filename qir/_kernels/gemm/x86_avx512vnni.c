#include "gemm.h"

#if defined(QIR_X86)
#include <string.h>

#include "x86_avx512.h"

QIR_TARGET_BEGIN(QIR_AVX512_TARGET)

enum { NR = 16, KR = 4, MAX_ROWS = 14 };

#define UNROLL _Pragma("GCC unroll 16")

QIR_INLINE __m512i load4(const uint8_t *a) {
  int32_t word;
  memcpy(&word, a, sizeof word);
  return _mm512_set1_epi32(word);
}

/* Sums of m rows and v vectors stay in registers; v loads and m broadcasts feed m * v products. */
QIR_INLINE void accumulate(const struct qir_gemm_block *b, size_t i, int m, int v, int flipped,
                           __m512i acc[MAX_ROWS][4]) {
  UNROLL for (int j = 0; j < v; ++j) {
    const __m512i bias = _mm512_loadu_si512(b->bias + j * NR);
    UNROLL for (int r = 0; r < m; ++r) acc[r][j] = bias;
  }
  if (b->shift) {
    UNROLL for (int r = 0; r < m; ++r) {
      const __m512i shift = _mm512_set1_epi32(b->shift[i + (size_t)r]);
      UNROLL for (int j = 0; j < v; ++j) acc[r][j] = _mm512_add_epi32(acc[r][j], shift);
    }
  }
  const __m512i flip = _mm512_set1_epi8((char)0x80);
  const int8_t *w = b->panel;
  for (size_t t = 0; t < b->taps; ++t) {
    const uint8_t *rows[MAX_ROWS];
    UNROLL for (int r = 0; r < m; ++r) rows[r] = b->rows[t * b->row_stride + i + (size_t)r];
    for (size_t p = 0; p < b->depth; p += KR, w += KR * NR * v) {
      __m512i right[4];
      UNROLL for (int j = 0; j < v; ++j) right[j] = _mm512_loadu_si512(w + j * NR * KR);
      UNROLL for (int r = 0; r < m; ++r) {
        __m512i left = load4(rows[r] + p);
        if (flipped) left = _mm512_xor_si512(left, flip);
        UNROLL for (int j = 0; j < v; ++j) QIR_DPBUSD(acc[r][j], left, right[j]);
      }
    }
  }
}

QIR_INLINE void finish(const struct qir_gemm_block *b, size_t i, int m, int v,
                       __m512i acc[MAX_ROWS][4]) {
  const struct qir_avx512_code code = qir_avx512_load_code(&b->code);
  UNROLL for (int r = 0; r < m; ++r) {
    __m512 real[4];
    UNROLL for (int j = 0; j < v; ++j) real[j] =
        _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][j]), _mm512_loadu_ps(b->multiplier + j * NR));
    const size_t at = (i + (size_t)r) * b->y_stride;
    if (b->to_float) {
      UNROLL for (int j = 0; j < v; ++j) if (b->columns > (size_t)j * NR) _mm512_mask_storeu_ps(
          (float *)b->y + at + j * NR, qir_avx512_first16(b->columns - (size_t)j * NR), real[j]);
    } else if (v == 4) {
      _mm512_mask_storeu_epi8((uint8_t *)b->y + at, qir_avx512_first64(b->columns),
                              qir_avx512_encode64(real[0], real[1], real[2], real[3], &code));
    } else {
      UNROLL for (int j = 0; j < v; ++j) _mm_mask_storeu_epi8(
          (uint8_t *)b->y + at + j * NR, qir_avx512_first16(b->columns - (size_t)j * NR),
          qir_avx512_encode16(real[j], &code));
    }
  }
}

QIR_INLINE void tile(const struct qir_gemm_block *b, size_t i, int m, int v) {
  __m512i acc[MAX_ROWS][4];
  if (b->x_flip)
    accumulate(b, i, m, v, 1, acc);
  else
    accumulate(b, i, m, v, 0, acc);
  finish(b, i, m, v, acc);
}

/* One function for each shape of tile keeps the compiler's allocation of registers local. */
#define TILE(m, v)                                                                                 \
  static __attribute__((noinline)) void tile_##m##x##v(const struct qir_gemm_block *b, size_t i) { \
    tile(b, i, m, v);                                                                              \
  }
#define TILES(v, m0, m1, m2)                                                                 \
  TILE(m0, v)                                                                                \
  TILE(m1, v) TILE(m2, v) TILE(1, v) static void panel_##v(const struct qir_gemm_block *b) { \
    size_t i = 0;                                                                            \
    for (; i + m0 <= b->count; i += m0) tile_##m0##x##v(b, i);                               \
    for (; i + m1 <= b->count; i += m1) tile_##m1##x##v(b, i);                               \
    for (; i + m2 <= b->count; i += m2) tile_##m2##x##v(b, i);                               \
    for (; i < b->count; ++i) tile_1x##v(b, i);                                              \
  }
TILES(1, 14, 8, 4)
TILES(2, 12, 6, 3)
TILES(3, 8, 4, 2)
TILES(4, 6, 4, 2)

void qir_gemm_avx512vnni(const struct qir_gemm_block *b) {
  switch (b->width / NR) {
    case 1: panel_1(b); break;
    case 2: panel_2(b); break;
    case 3: panel_3(b); break;
    default: panel_4(b); break;
  }
}

QIR_TARGET_END
#endif
