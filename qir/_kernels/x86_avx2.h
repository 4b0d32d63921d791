#ifndef QIR_X86_AVX2_H
#define QIR_X86_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "isa.h"
#include "requant.h"

QIR_TARGET_BEGIN("avx2,fma")

/* Sixteen reals to the bytes of their codes, in order. */
static inline __attribute__((always_inline)) __m128i qir_avx2_encode(__m256 a, __m256 b,
                                                                     const struct qir_code *to) {
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
static inline __attribute__((always_inline)) void qir_avx2_store_codes(uint8_t *y, __m256 a,
                                                                       __m256 b,
                                                                       const struct qir_code *to,
                                                                       size_t n) {
  const __m128i bytes = qir_avx2_encode(a, b, to);
  if (n >= 16) {
    _mm_storeu_si128((__m128i *)y, bytes);
  } else {
    uint8_t tail[16];
    _mm_storeu_si128((__m128i *)tail, bytes);
    memcpy(y, tail, n);
  }
}

/* Stores the first n of sixteen reals. */
static inline __attribute__((always_inline)) void qir_avx2_store_f32(float *y, __m256 a, __m256 b,
                                                                     size_t n) {
  float tail[16];
  _mm256_storeu_ps(tail, a);
  _mm256_storeu_ps(tail + 8, b);
  memcpy(y, tail, (n < 16 ? n : 16) * sizeof *y);
}

/* Sixteen codes, of which the first n exist, as two vectors of reals. */
static inline __attribute__((always_inline)) void qir_avx2_load_codes(const uint8_t *x,
                                                                      uint8_t flip, size_t n,
                                                                      __m256 *a, __m256 *b) {
  __m128i bytes;
  if (n >= 16) {
    bytes = _mm_loadu_si128((const __m128i *)x);
  } else {
    uint8_t tail[16] = {0};
    memcpy(tail, x, n);
    bytes = _mm_loadu_si128((const __m128i *)tail);
  }
  if (flip) {
    *a = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    *b = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)));
  } else {
    *a = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
    *b = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
  }
}

QIR_TARGET_END
#endif
