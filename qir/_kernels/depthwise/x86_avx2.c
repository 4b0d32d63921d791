#include "depthwise.h"

#if defined(QIR_X86)
#include "x86_avx2.h"

QIR_TARGET_BEGIN("avx2,fma")

enum { BLOCK = 16, LANES = 2 };

/* Sixteen codes of a tap as unsigned 16-bit numbers. */
static inline __m256i load(const uint8_t *x, size_t n, __m128i flip) {
  __m128i bytes;
  if (n >= BLOCK) {
    bytes = _mm_loadu_si128((const __m128i *)x);
  } else {
    uint8_t tail[BLOCK] = {0};
    memcpy(tail, x, n);
    bytes = _mm_loadu_si128((const __m128i *)tail);
  }
  return _mm256_cvtepu8_epi16(_mm_xor_si128(bytes, flip));
}

static inline void pixel(const struct qir_depthwise_run *run, size_t ox, size_t c, __m128i flip) {
  const size_t left = qir_depthwise_left(run, c);
  const int16_t *w = (const int16_t *)run->weights + c * run->groups * LANES;
  const uint8_t *const *taps = run->taps;
  const size_t at = ox * run->step + c;
  __m256i low = _mm256_loadu_si256((const __m256i *)(run->bias + c));
  __m256i high = _mm256_loadu_si256((const __m256i *)(run->bias + c + 8));
  for (size_t g = 0; g < run->groups; ++g, taps += LANES, w += BLOCK * LANES) {
    const __m256i a = load(taps[0] + at, left, flip), b = load(taps[1] + at, left, flip);
    const __m256i *right = (const __m256i *)w;
    low = _mm256_add_epi32(
        low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), _mm256_loadu_si256(right)));
    high = _mm256_add_epi32(
        high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), _mm256_loadu_si256(right + 1)));
  }
  const __m256 p = _mm256_mul_ps(_mm256_cvtepi32_ps(low), _mm256_loadu_ps(run->multiplier + c));
  const __m256 q =
      _mm256_mul_ps(_mm256_cvtepi32_ps(high), _mm256_loadu_ps(run->multiplier + c + 8));
  qir_avx2_store_codes(run->y + ox * run->channels + c, _mm256_permute2f128_ps(p, q, 0x20),
                       _mm256_permute2f128_ps(p, q, 0x31), &run->code, left);
}

void qir_depthwise_avx2(const struct qir_depthwise_run *run) {
  const __m128i flip = _mm_set1_epi8((char)run->x_flip);
  for (size_t ox = 0; ox < run->width; ++ox)
    for (size_t c = 0; c < run->channels; c += BLOCK) pixel(run, ox, c, flip);
}

QIR_TARGET_END
#endif
