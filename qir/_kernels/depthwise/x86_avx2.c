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

/* Sums of two products each, as 16 bits hold them if `pairs` is set. */
static inline __m256i products(__m256i x, const __m256i *w, int pairs) {
  const __m256i sums = _mm256_madd_epi16(x, _mm256_loadu_si256(w));
  if (!pairs) return sums;
  return _mm256_min_epi32(_mm256_max_epi32(sums, _mm256_set1_epi32(INT16_MIN)),
                          _mm256_set1_epi32(INT16_MAX));
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
    low = _mm256_add_epi32(low, products(_mm256_unpacklo_epi16(a, b), right, run->pairs));
    high = _mm256_add_epi32(high, products(_mm256_unpackhi_epi16(a, b), right + 1, run->pairs));
  }
  const __m256 p = _mm256_mul_ps(_mm256_cvtepi32_ps(low), _mm256_loadu_ps(run->multiplier + c));
  const __m256 q =
      _mm256_mul_ps(_mm256_cvtepi32_ps(high), _mm256_loadu_ps(run->multiplier + c + 8));
  const __m256 first = _mm256_permute2f128_ps(p, q, 0x20);
  const __m256 second = _mm256_permute2f128_ps(p, q, 0x31);
  const size_t to = ox * run->channels + c;
  if (run->to_float)
    qir_avx2_store_f32((float *)run->y + to, first, second, left);
  else
    qir_avx2_store_codes((uint8_t *)run->y + to, first, second, &run->code, left);
}

void qir_depthwise_avx2(const struct qir_depthwise_run *run) {
  const __m128i flip = _mm_set1_epi8((char)run->x_flip);
  for (size_t ox = 0; ox < run->width; ++ox)
    for (size_t c = 0; c < run->channels; c += BLOCK) pixel(run, ox, c, flip);
}

QIR_TARGET_END
#endif
