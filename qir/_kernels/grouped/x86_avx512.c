#include "grouped.h"

#if defined(QIR_X86)
#include "x86_avx512.h"

QIR_TARGET_BEGIN(QIR_AVX512_TARGET)

enum { WORDS = 16, LANES = 2, MOST = 8 };
#define VEC __m512i
#define LOAD _mm512_load_si512
#define PERMUTE(x, index) _mm512_permutexvar_epi32(index, x)
#define DOT(sum, left, right) (sum = _mm512_add_epi32(sum, _mm512_madd_epi16(left, right)))
#define QIR_NAME qir_grouped_avx512

void qir_grouped_avx512_copy(const struct qir_grouped_copy *copy) {
  const __m256i flip = _mm256_set1_epi8((char)copy->flip);
  const __mmask32 keep = (__mmask32)qir_avx512_first64(copy->channels);
  const uint8_t *x = copy->x;
  __m512i *to = copy->to;
  for (size_t i = 0; i < copy->count; ++i, x += copy->stride)
    _mm512_store_si512(
        to + i, _mm512_cvtepu8_epi16(_mm256_xor_si256(_mm256_maskz_loadu_epi8(keep, x), flip)));
}

QIR_INLINE void store_floats(float *y, size_t columns, __m512 even, __m512 odd) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  _mm512_mask_storeu_ps(y, qir_avx512_first16(columns), _mm512_permutex2var_ps(even, low, odd));
  if (columns > 16)
    _mm512_mask_storeu_ps(y + 16, qir_avx512_first16(columns - 16),
                          _mm512_permutex2var_ps(even, high, odd));
}

QIR_INLINE void finish(const struct qir_grouped_run *run, size_t at, const __m512i sums[LANES]) {
  const __m512 p = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[0]), _mm512_load_ps(run->multiplier));
  const __m512 q =
      _mm512_mul_ps(_mm512_cvtepi32_ps(sums[1]), _mm512_load_ps(run->multiplier + WORDS));
  if (run->to_float) {
    store_floats((float *)run->y + at, run->columns, p, q);
    return;
  }
  const struct qir_avx512_code code = qir_avx512_load_code(&run->code);
  /* Of each eight bytes, the even channels come first. */
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
  _mm256_mask_storeu_epi8((uint8_t *)run->y + at, (__mmask32)qir_avx512_first64(run->columns),
                          _mm256_shuffle_epi8(qir_avx512_encode32(p, q, &code), order));
}

#include "body.h"

QIR_TARGET_END
#endif
