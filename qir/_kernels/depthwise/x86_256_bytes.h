/* The kernel on 256 bits of bytes; what includes this defines DOT, DOT_FROM and QIR_NAME. */

enum { WORDS = 8, LANES = 4, VECTORS = 4 };
#define VEC __m256i
#define LOAD(from) _mm256_loadu_si256((const __m256i *)(from))
#define PAIRS(sum, left, right) \
  (sum = _mm256_add_epi32(      \
       sum, _mm256_madd_epi16(_mm256_maddubs_epi16(left, right), _mm256_set1_epi16(1))))

QIR_INLINE __m256i line(const uint8_t *x, size_t n, uint8_t flip) {
  return _mm256_xor_si256(qir_avx2_load_first32(x, n), _mm256_set1_epi8((char)flip));
}

/* Four lines to words; vector i has in its lane l the channels 16 l + 4 i onwards. */
QIR_INLINE void interleave(__m256i r0, __m256i r1, __m256i r2, __m256i r3, __m256i x[VECTORS]) {
  const __m256i a = _mm256_unpacklo_epi8(r0, r1), b = _mm256_unpackhi_epi8(r0, r1);
  const __m256i d = _mm256_unpacklo_epi8(r2, r3), e = _mm256_unpackhi_epi8(r2, r3);
  x[0] = _mm256_unpacklo_epi16(a, d);
  x[1] = _mm256_unpackhi_epi16(a, d);
  x[2] = _mm256_unpacklo_epi16(b, e);
  x[3] = _mm256_unpackhi_epi16(b, e);
}

QIR_INLINE void gather(const uint8_t *const *taps, size_t at, size_t n, uint8_t flip,
                       __m256i x[VECTORS]) {
  interleave(line(taps[0] + at, n, flip), line(taps[1] + at, n, flip), line(taps[2] + at, n, flip),
             line(taps[3] + at, n, flip), x);
}

QIR_INLINE void column(const uint8_t *const *lines, size_t n, uint8_t flip, __m256i x[VECTORS]) {
  interleave(line(lines[0], n, flip), line(lines[1], n, flip), line(lines[2], n, flip),
             _mm256_setzero_si256(), x);
}

QIR_INLINE void finish(const struct qir_depthwise_run *run, size_t at, size_t c, size_t n,
                       const __m256i sums[VECTORS]) {
  __m256 real[VECTORS];
  for (int i = 0; i < VECTORS; ++i)
    real[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[i]),
                            _mm256_loadu_ps(run->multiplier + c + i * WORDS));
  if (run->to_float)
    qir_avx2_store_lanes32((float *)run->y + at, real, n);
  else
    qir_avx2_store_first32((uint8_t *)run->y + at, qir_avx2_encode32(real, &run->code), n);
}

#include "body.h"
/* after what it uses */
#include "slides.h"
