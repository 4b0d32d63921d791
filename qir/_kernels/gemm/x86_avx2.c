#include "gemm.h"

#if defined(QIR_X86)
#include <immintrin.h>

#include "x86_avx2.h"

QIR_TARGET_BEGIN("avx2,fma")

enum { NR = 8, KR = 2 };

/*
 * Operands are 16-bit: VPMADDUBSW on bytes would saturate the sum of two products.
 * Sums of `m` rows and `v` vectors stay in registers: 6 * 2 of the 16.
 */
static inline __attribute__((always_inline)) void tile(const struct qir_gemm_block *b, size_t i,
                                                       int m, int v) {
  __m256i acc[6][2];
  for (int r = 0; r < m; ++r)
    for (int j = 0; j < v; ++j) acc[r][j] = _mm256_loadu_si256((const __m256i *)(b->bias + j * NR));
  if (b->shift)
    for (int r = 0; r < m; ++r)
      for (int j = 0; j < v; ++j) {
        __m256i shift = _mm256_set1_epi32(b->shift[i + (size_t)r]);
        if (b->gain)
          shift =
              _mm256_mullo_epi32(shift, _mm256_loadu_si256((const __m256i *)(b->gain + j * NR)));
        acc[r][j] = _mm256_add_epi32(acc[r][j], shift);
      }
  const int16_t *w = b->panel;
  for (size_t t = 0; t < b->taps; ++t) {
    const int16_t *const *rows = (const int16_t *const *)(b->rows + t * b->row_stride + i);
    for (size_t p = 0; p < b->depth; p += KR, w += KR * NR * v) {
      __m256i right[2];
      for (int j = 0; j < v; ++j) right[j] = _mm256_loadu_si256((const __m256i *)(w + j * NR * KR));
      for (int r = 0; r < m; ++r) {
        int32_t pair;
        memcpy(&pair, rows[r] + p, sizeof pair);
        const __m256i left = _mm256_set1_epi32(pair);
        for (int j = 0; j < v; ++j)
          acc[r][j] = _mm256_add_epi32(acc[r][j], _mm256_madd_epi16(left, right[j]));
      }
    }
  }
  for (int r = 0; r < m; ++r) {
    __m256 real[2];
    for (int j = 0; j < v; ++j)
      real[j] =
          _mm256_mul_ps(_mm256_cvtepi32_ps(acc[r][j]), _mm256_loadu_ps(b->multiplier + j * NR));
    if (b->plus)
      for (int j = 0; j < v; ++j)
        real[j] = _mm256_add_ps(real[j], _mm256_loadu_ps(b->plus + j * NR));
    if (v == 1) real[1] = _mm256_setzero_ps();
    if (b->to_float)
      qir_avx2_store_f32((float *)b->y + (i + r) * b->y_stride, real[0], real[1], b->columns);
    else
      qir_avx2_store_codes((uint8_t *)b->y + (i + r) * b->y_stride, real[0], real[1], &b->code,
                           b->columns);
  }
}

#define TILES(v)                               \
  for (; i + 6 <= n; i += 6) tile(b, i, 6, v); \
  if (i + 4 <= n) {                            \
    tile(b, i, 4, v);                          \
    i += 4;                                    \
  }                                            \
  if (i + 2 <= n) {                            \
    tile(b, i, 2, v);                          \
    i += 2;                                    \
  }                                            \
  if (i < n) tile(b, i, 1, v);

void qir_gemm_avx2(const struct qir_gemm_block *b) {
  const size_t n = b->count;
  size_t i = 0;
  if (b->width == 2 * NR) {
    TILES(2)
  } else {
    TILES(1)
  }
}

QIR_TARGET_END
#endif
