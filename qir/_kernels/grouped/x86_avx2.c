#include "grouped.h"

#if defined(QIR_X86)
#include "x86_avx2.h"

QIR_TARGET_BEGIN("avx2,fma")

enum { WORDS = 8, LANES = 2, MOST = 4 };
#define VEC __m256i
#define LOAD(from) _mm256_load_si256((const __m256i *)(from))
#define PERMUTE _mm256_permutevar8x32_epi32
#define DOT(sum, left, right) (sum = _mm256_add_epi32(sum, _mm256_madd_epi16(left, right)))
#define QIR_NAME qir_grouped_avx2

void qir_grouped_avx2_copy(const struct qir_grouped_copy *copy) {
  const __m128i flip = _mm_set1_epi8((char)copy->flip);
  const uint8_t *x = copy->x;
  __m256i *to = copy->to;
  for (size_t i = 0; i < copy->count; ++i, x += copy->stride)
    _mm256_store_si256(to + i, _mm256_cvtepu8_epi16(
                                   _mm_xor_si128(qir_avx2_load_first16(x, copy->channels), flip)));
}

QIR_INLINE void finish(const struct qir_grouped_run *run, size_t at, const __m256i sums[LANES]) {
  const __m256 p = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[0]), _mm256_load_ps(run->multiplier));
  const __m256 q =
      _mm256_mul_ps(_mm256_cvtepi32_ps(sums[1]), _mm256_load_ps(run->multiplier + WORDS));
  const __m256 low = _mm256_unpacklo_ps(p, q), high = _mm256_unpackhi_ps(p, q);
  const __m256 first = _mm256_permute2f128_ps(low, high, 0x20);
  const __m256 second = _mm256_permute2f128_ps(low, high, 0x31);
  if (run->to_float)
    qir_avx2_store_f32((float *)run->y + at, first, second, run->columns);
  else
    qir_avx2_store_codes((uint8_t *)run->y + at, first, second, &run->code, run->columns);
}

#include "body.h"

QIR_TARGET_END
#endif
