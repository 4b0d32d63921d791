#include "gemm.h"

#if defined(QIR_X86)
#include <string.h>

#include "x86_avx512.h"

QIR_TARGET_BEGIN(QIR_AVX512_TARGET)

/* Operands are 16-bit, as those of AVX2. */
enum { NR = 16, KR = 2 };
#define VEC __m512i
#define LOAD _mm512_loadu_si512
#define SET1 _mm512_set1_epi32
#define ADD _mm512_add_epi32
#define MUL _mm512_mullo_epi32
#define XOR _mm512_xor_si512
#define DOT(sum, left, right) (sum = _mm512_add_epi32(sum, _mm512_madd_epi16(left, right)))

/* A panel of two vectors holds 8 columns in each 128-bit lane, unless y is f32: qir_gemm_place. */
QIR_INLINE void finish(const struct qir_gemm_block *b, size_t i, int v, const __m512i *sums) {
  __m512 real[2];
  for (int j = 0; j < v; ++j)
    real[j] = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[j]), _mm512_loadu_ps(b->multiplier + j * NR));
  if (b->plus)
    for (int j = 0; j < v; ++j) real[j] = _mm512_add_ps(real[j], _mm512_loadu_ps(b->plus + j * NR));
  if (b->to_float) {
    float *y = (float *)b->y + i * b->y_stride;
    for (int j = 0; j < v; ++j)
      if (b->columns > (size_t)j * NR)
        _mm512_mask_storeu_ps(y + j * NR, qir_avx512_first16(b->columns - (size_t)j * NR), real[j]);
    return;
  }
  const struct qir_avx512_code code = qir_avx512_load_code(&b->code);
  uint8_t *y = (uint8_t *)b->y + i * b->y_stride;
  if (v == 1)
    _mm_mask_storeu_epi8(y, qir_avx512_first16(b->columns), qir_avx512_encode16(real[0], &code));
  else
    _mm256_mask_storeu_epi8(y, (__mmask32)qir_avx512_first64(b->columns),
                            qir_avx512_encode32(real[0], real[1], &code));
}

#include "body.h"

TILES(1, 12, 4, 2)
TILES(2, 12, 4, 2)

void qir_gemm_avx512(const struct qir_gemm_block *b) {
  if (b->width == NR)
    panel_1(b);
  else
    panel_2(b);
}

QIR_TARGET_END
#endif
