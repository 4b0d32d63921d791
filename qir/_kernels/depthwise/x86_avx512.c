#include "depthwise.h"

#if defined(QIR_X86)
#include "x86_avx512.h"

QIR_TARGET_BEGIN(QIR_AVX512_TARGET)

enum { WORDS = 16, LANES = 2, VECTORS = 2 };
#define VEC __m512i
#define LOAD(from) _mm512_loadu_si512(from)
#define DOT(sum, left, right) (sum = _mm512_add_epi32(sum, _mm512_madd_epi16(left, right)))
#define DOT_FROM(sum, left, right) DOT(sum, left, LOAD(right))
#define PAIRS(sum, left, right) \
  (sum = _mm512_add_epi32(sum, saturated(_mm512_madd_epi16(left, right))))
#define QIR_NAME qir_depthwise_avx512

QIR_INLINE __m512i saturated(__m512i sum) {
  return _mm512_min_epi32(_mm512_max_epi32(sum, _mm512_set1_epi32(INT16_MIN)),
                          _mm512_set1_epi32(INT16_MAX));
}

QIR_INLINE __m512i widened(const uint8_t *x, size_t n, uint8_t flip) {
  const __m256i bytes = n >= 32 ? _mm256_loadu_si256((const __m256i *)x)
                                : _mm256_maskz_loadu_epi8((__mmask32)qir_avx512_first64(n), x);
  return _mm512_cvtepu8_epi16(_mm256_xor_si256(bytes, _mm256_set1_epi8((char)flip)));
}

QIR_INLINE void gather(const uint8_t *const *taps, size_t at, size_t n, uint8_t flip,
                       __m512i x[VECTORS]) {
  const __m512i a = widened(taps[0] + at, n, flip), b = widened(taps[1] + at, n, flip);
  x[0] = _mm512_unpacklo_epi16(a, b);
  x[1] = _mm512_unpackhi_epi16(a, b);
}

/* Vector i has in its lane l the channels 8 l + 4 i onwards. */
QIR_INLINE void finish(const struct qir_depthwise_run *run, size_t at, size_t c, size_t n,
                       const __m512i sums[VECTORS]) {
  const float *multiplier = run->multiplier + c;
  const __m512 p = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[0]), _mm512_loadu_ps(multiplier));
  const __m512 q = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[1]), _mm512_loadu_ps(multiplier + WORDS));
  if (!run->to_float) {
    const struct qir_avx512_code code = qir_avx512_load_code(&run->code);
    _mm256_mask_storeu_epi8((uint8_t *)run->y + at, (__mmask32)qir_avx512_first64(n),
                            qir_avx512_encode32(p, q, &code));
    return;
  }
  float *y = (float *)run->y + at;
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  _mm512_mask_storeu_ps(y, qir_avx512_first16(n), _mm512_permutex2var_ps(p, low, q));
  if (n > 16)
    _mm512_mask_storeu_ps(y + 16, qir_avx512_first16(n - 16), _mm512_permutex2var_ps(p, high, q));
}

QIR_INLINE void column(const uint8_t *const *lines, size_t n, uint8_t flip,
                       __m512i x[2 * VECTORS]) {
  const __m512i c = widened(lines[2], n, flip), zero = _mm512_setzero_si512();
  gather(lines, 0, n, flip, x);
  x[2] = _mm512_unpacklo_epi16(c, zero);
  x[3] = _mm512_unpackhi_epi16(c, zero);
}

#include "body.h"
/* after what it uses */
#include "slides.h"

QIR_TARGET_END
#endif
