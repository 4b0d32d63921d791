#ifndef QIR_X86_AVX2_H
#define QIR_X86_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "isa.h"
#include "requant.h"

QIR_TARGET_BEGIN("avx2,fma")

/* The first n of sixteen bytes, the others zero. */
QIR_INLINE __m128i qir_avx2_load_first16(const uint8_t *x, size_t n) {
  if (n >= 16) return _mm_loadu_si128((const __m128i *)x);
  if (n == 8) return _mm_loadl_epi64((const __m128i *)x);
  uint8_t some[16] = {0};
  memcpy(some, x, n);
  return _mm_loadu_si128((const __m128i *)some);
}

/* Stores the first n of sixteen bytes. */
QIR_INLINE void qir_avx2_store_first16(uint8_t *y, __m128i bytes, size_t n) {
  if (n >= 16) {
    _mm_storeu_si128((__m128i *)y, bytes);
  } else if (n == 8) {
    _mm_storel_epi64((__m128i *)y, bytes);
  } else {
    uint8_t some[16];
    _mm_storeu_si128((__m128i *)some, bytes);
    memcpy(y, some, n);
  }
}

/* Sixteen reals to the bytes of their codes, in order. */
QIR_INLINE __m128i qir_avx2_encode(__m256 a, __m256 b, const struct qir_code *to) {
  const __m256 low = _mm256_set1_ps((float)(to->low - to->zero));
  const __m256 high = _mm256_set1_ps((float)(to->high - to->zero));
  const __m256i zero = _mm256_set1_epi16((short)(to->zero + to->flip));
  const __m256i qa = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(a, low), high));
  const __m256i qb = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(b, low), high));
  const __m256i words = _mm256_add_epi16(
      _mm256_permute4x64_epi64(_mm256_packs_epi32(qa, qb), _MM_SHUFFLE(3, 1, 2, 0)), zero);
  const __m128i bytes =
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  return _mm_xor_si128(bytes, _mm_set1_epi8((char)to->flip));
}

/* Stores the first n of sixteen codes. */
QIR_INLINE void qir_avx2_store_codes(uint8_t *y, __m256 a, __m256 b, const struct qir_code *to,
                                     size_t n) {
  qir_avx2_store_first16(y, qir_avx2_encode(a, b, to), n);
}

/* Stores the first n of sixteen reals. */
QIR_INLINE void qir_avx2_store_f32(float *y, __m256 a, __m256 b, size_t n) {
  float tail[16];
  _mm256_storeu_ps(tail, a);
  _mm256_storeu_ps(tail + 8, b);
  memcpy(y, tail, (n < 16 ? n : 16) * sizeof *y);
}

/* Sixteen codes, of which the first n exist, as two vectors of reals. */
QIR_INLINE void qir_avx2_load_codes(const uint8_t *x, uint8_t flip, size_t n, __m256 *a,
                                    __m256 *b) {
  const __m128i bytes = qir_avx2_load_first16(x, n);
  if (flip) {
    *a = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    *b = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)));
  } else {
    *a = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
    *b = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
  }
}

/* ---- thirty-two at once ---- */

QIR_INLINE __m256i qir_avx2_load_first32(const uint8_t *x, size_t n) {
  if (n >= 32) return _mm256_loadu_si256((const __m256i *)x);
  if (n <= 16) return _mm256_castsi128_si256(qir_avx2_load_first16(x, n));
  return _mm256_set_m128i(qir_avx2_load_first16(x + 16, n - 16), qir_avx2_load_first16(x, 16));
}

QIR_INLINE void qir_avx2_store_first32(uint8_t *y, __m256i bytes, size_t n) {
  if (n >= 32) {
    _mm256_storeu_si256((__m256i *)y, bytes);
    return;
  }
  qir_avx2_store_first16(y, _mm256_castsi256_si128(bytes), n);
  if (n > 16) qir_avx2_store_first16(y + 16, _mm256_extracti128_si256(bytes, 1), n - 16);
}

/* Reals to the bytes of their codes: vector i holds in its lane l the numbers 16 l + 4 i onwards.
 */
QIR_INLINE __m256i qir_avx2_encode32(const __m256 real[4], const struct qir_code *to) {
  const __m256 low = _mm256_set1_ps((float)(to->low - to->zero));
  const __m256 high = _mm256_set1_ps((float)(to->high - to->zero));
  const __m256i zero = _mm256_set1_epi16((short)(to->zero + to->flip));
  __m256i q[4];
  for (int i = 0; i < 4; ++i)
    q[i] = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(real[i], low), high));
  const __m256i a = _mm256_add_epi16(_mm256_packs_epi32(q[0], q[1]), zero);
  const __m256i b = _mm256_add_epi16(_mm256_packs_epi32(q[2], q[3]), zero);
  return _mm256_xor_si256(_mm256_packus_epi16(a, b), _mm256_set1_epi8((char)to->flip));
}

/* Stores the first n reals of vectors in that order. */
QIR_INLINE void qir_avx2_store_lanes32(float *y, const __m256 real[4], size_t n) {
  qir_avx2_store_f32(y, _mm256_permute2f128_ps(real[0], real[1], 0x20),
                     _mm256_permute2f128_ps(real[2], real[3], 0x20), n);
  if (n > 16)
    qir_avx2_store_f32(y + 16, _mm256_permute2f128_ps(real[0], real[1], 0x31),
                       _mm256_permute2f128_ps(real[2], real[3], 0x31), n - 16);
}

QIR_TARGET_END
#endif
