#include "depthwise.h"

#if defined(QIR_X86)
#include "x86_avx2.h"

QIR_TARGET_BEGIN("avx2,fma")

enum { WORDS = 8, LANES = 2, VECTORS = 2 };
#define VEC __m256i
#define LOAD(from) _mm256_loadu_si256((const __m256i *)(from))
#define DOT(sum, left, right) (sum = _mm256_add_epi32(sum, _mm256_madd_epi16(left, right)))
#define DOT_FROM(sum, left, right) DOT(sum, left, LOAD(right))
#define PAIRS(sum, left, right) \
  (sum = _mm256_add_epi32(sum, saturated(_mm256_madd_epi16(left, right))))
#define QIR_NAME qir_depthwise_avx2

QIR_INLINE __m256i saturated(__m256i sum) {
  return _mm256_min_epi32(_mm256_max_epi32(sum, _mm256_set1_epi32(INT16_MIN)),
                          _mm256_set1_epi32(INT16_MAX));
}

QIR_INLINE __m256i widened(const uint8_t *x, size_t n, uint8_t flip) {
  return _mm256_cvtepu8_epi16(
      _mm_xor_si128(qir_avx2_load_first16(x, n), _mm_set1_epi8((char)flip)));
}

QIR_INLINE void gather(const uint8_t *const *taps, size_t at, size_t n, uint8_t flip,
                       __m256i x[VECTORS]) {
  const __m256i a = widened(taps[0] + at, n, flip), b = widened(taps[1] + at, n, flip);
  x[0] = _mm256_unpacklo_epi16(a, b);
  x[1] = _mm256_unpackhi_epi16(a, b);
}

QIR_INLINE void finish(const struct qir_depthwise_run *run, size_t at, size_t c, size_t n,
                       const __m256i sums[VECTORS]) {
  const float *multiplier = run->multiplier + c;
  const __m256 p = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[0]), _mm256_loadu_ps(multiplier));
  const __m256 q = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[1]), _mm256_loadu_ps(multiplier + WORDS));
  const __m256 first = _mm256_permute2f128_ps(p, q, 0x20);
  const __m256 second = _mm256_permute2f128_ps(p, q, 0x31);
  if (run->to_float)
    qir_avx2_store_f32((float *)run->y + at, first, second, n);
  else
    qir_avx2_store_codes((uint8_t *)run->y + at, first, second, &run->code, n);
}

QIR_INLINE void column(const uint8_t *const *lines, size_t n, uint8_t flip,
                       __m256i x[2 * VECTORS]) {
  const __m256i c = widened(lines[2], n, flip), zero = _mm256_setzero_si256();
  gather(lines, 0, n, flip, x);
  x[2] = _mm256_unpacklo_epi16(c, zero);
  x[3] = _mm256_unpackhi_epi16(c, zero);
}

#include "body.h"
/* after what it uses */
#include "slides.h"

QIR_TARGET_END
#endif
