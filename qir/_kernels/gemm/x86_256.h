/* Sums of 6 rows and 2 vectors, or of 12 and 1, take 12 of the 16 registers that AVX2 has. */

enum { NR = 8 };
#define VEC __m256i
#define LOAD(from) _mm256_loadu_si256((const __m256i *)(from))
#define SET1 _mm256_set1_epi32
#define ADD _mm256_add_epi32
#define MUL _mm256_mullo_epi32
#define XOR _mm256_xor_si256

QIR_INLINE void finish(const struct qir_gemm_block *b, size_t i, int v, const __m256i *sums) {
  __m256 real[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (int j = 0; j < v; ++j)
    real[j] = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[j]), _mm256_loadu_ps(b->multiplier + j * NR));
  if (b->plus)
    for (int j = 0; j < v; ++j) real[j] = _mm256_add_ps(real[j], _mm256_loadu_ps(b->plus + j * NR));
  if (b->to_float)
    qir_avx2_store_f32((float *)b->y + i * b->y_stride, real[0], real[1], b->columns);
  else
    qir_avx2_store_codes((uint8_t *)b->y + i * b->y_stride, real[0], real[1], &b->code, b->columns);
}

#include "body.h"

TILES(1, 12, 4, 2)
TILES(2, 6, 4, 2)

void QIR_NAME(const struct qir_gemm_block *b) {
  if (b->width == NR)
    panel_1(b);
  else
    panel_2(b);
}
