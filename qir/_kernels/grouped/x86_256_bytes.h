/* Kernels on 256 bits of bytes; what includes this defines DOT, QIR_NAME and QIR_COPY. */

enum { WORDS = 8, LANES = 4, MOST = 3 /* pixels, whose sums take 12 of 16 registers */ };
#define VEC __m256i
#define LOAD(from) _mm256_load_si256((const __m256i *)(from))
#define PERMUTE _mm256_permutevar8x32_epi32

void QIR_COPY(const struct qir_grouped_copy *copy) {
  const __m256i flip = _mm256_set1_epi8((char)copy->flip);
  const uint8_t *x = copy->x;
  __m256i *to = copy->to;
  for (size_t i = 0; i < copy->count; ++i, x += copy->stride)
    _mm256_store_si256(to + i, _mm256_xor_si256(qir_avx2_load_first32(x, copy->channels), flip));
}

/* Stores floats in the order of channels. */
QIR_INLINE void store_floats(float *y, size_t columns, const __m256 real[LANES]) {
  const __m256 a = _mm256_unpacklo_ps(real[0], real[1]), b = _mm256_unpackhi_ps(real[0], real[1]);
  const __m256 c = _mm256_unpacklo_ps(real[2], real[3]), d = _mm256_unpackhi_ps(real[2], real[3]);
  const __m256d ac = _mm256_castps_pd(a), ca = _mm256_castps_pd(c);
  const __m256d bd = _mm256_castps_pd(b), db = _mm256_castps_pd(d);
  const __m256 words[4] = {
      _mm256_castpd_ps(_mm256_unpacklo_pd(ac, ca)), _mm256_castpd_ps(_mm256_unpackhi_pd(ac, ca)),
      _mm256_castpd_ps(_mm256_unpacklo_pd(bd, db)), _mm256_castpd_ps(_mm256_unpackhi_pd(bd, db))};
  qir_avx2_store_lanes32(y, words, columns);
}

QIR_INLINE void finish(const struct qir_grouped_run *run, size_t at, const __m256i sums[LANES]) {
  __m256 real[LANES];
  for (int t = 0; t < LANES; ++t)
    real[t] =
        _mm256_mul_ps(_mm256_cvtepi32_ps(sums[t]), _mm256_load_ps(run->multiplier + t * WORDS));
  if (run->to_float) {
    store_floats((float *)run->y + at, run->columns, real);
    return;
  }
  /* Byte t of word i of a lane is in its word t. */
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  qir_avx2_store_first32((uint8_t *)run->y + at,
                         _mm256_shuffle_epi8(qir_avx2_encode32(real, &run->code), order),
                         run->columns);
}

#include "body.h"
