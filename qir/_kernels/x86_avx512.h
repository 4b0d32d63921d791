#ifndef QIR_X86_AVX512_H
#define QIR_X86_AVX512_H

#include <immintrin.h>

#include "isa.h"
#include "requant.h"

#define QIR_AVX512_TARGET "avx512f,avx512bw,avx512dq,avx512vl,fma"
#define QIR_AVX512VNNI_TARGET QIR_AVX512_TARGET ",avx512vnni"

QIR_TARGET_BEGIN(QIR_AVX512_TARGET)

/* The first n lanes. */
QIR_INLINE __mmask16 qir_avx512_first16(size_t n) {
  return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}
QIR_INLINE __mmask64 qir_avx512_first64(size_t n) {
  return n >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << n) - 1;
}

/* What qir_encode needs, in registers. */
struct qir_avx512_code {
  __m512 low, high;
  __m512i zero, zero16, floor, ceiling, flip; /* zero16, floor and ceiling are of flipped codes */
};

QIR_INLINE struct qir_avx512_code qir_avx512_load_code(const struct qir_code *to) {
  struct qir_avx512_code c;
  c.low = _mm512_set1_ps((float)(to->low - to->zero));
  c.high = _mm512_set1_ps((float)(to->high - to->zero));
  c.zero = _mm512_set1_epi32(to->zero);
  c.zero16 = _mm512_set1_epi16((short)(to->zero + to->flip));
  c.floor = _mm512_set1_epi8((char)(to->low + to->flip));
  c.ceiling = _mm512_set1_epi8((char)(to->high + to->flip));
  c.flip = _mm512_set1_epi8((char)to->flip);
  return c;
}

/* Sixteen reals to the bytes of their codes. */
QIR_INLINE __m128i qir_avx512_encode16(__m512 real, const struct qir_avx512_code *c) {
  real = _mm512_min_ps(_mm512_max_ps(real, c->low), c->high);
  return _mm512_cvtepi32_epi8(_mm512_add_epi32(_mm512_cvtps_epi32(real), c->zero));
}

/* A NaN or a number below the range gives INT_MIN here, which the packing saturates to `floor`. */
QIR_INLINE __m512i qir_avx512_round(__m512 real, const struct qir_avx512_code *c) {
  return _mm512_cvtps_epi32(_mm512_min_ps(c->high, real));
}

/*
 * Sixty-four integers to bytes: vector v holds in its 128-bit lane l the numbers 16 l + 4 v
 * onwards, and the bytes come out in order, flipped.
 */
QIR_INLINE __m512i qir_avx512_narrow64(__m512i i0, __m512i i1, __m512i i2, __m512i i3,
                                       const struct qir_avx512_code *c) {
  const __m512i a = _mm512_packs_epi32(i0, i1), b = _mm512_packs_epi32(i2, i3);
  return _mm512_packus_epi16(_mm512_adds_epi16(a, c->zero16), _mm512_adds_epi16(b, c->zero16));
}

/* Thirty-two floats, whose vectors have in each 128-bit lane four of eight, to bytes in order. */
QIR_INLINE __m256i qir_avx512_encode32(__m512 r0, __m512 r1, const struct qir_avx512_code *c) {
  const __m512i both = _mm512_packs_epi32(qir_avx512_round(r0, c), qir_avx512_round(r1, c));
  const __m512i moved = _mm512_adds_epi16(both, c->zero16);
  const __m256i bytes = _mm512_cvtusepi16_epi8(_mm512_max_epi16(moved, _mm512_setzero_si512()));
  return _mm256_xor_si256(_mm256_max_epu8(bytes, _mm512_castsi512_si256(c->floor)),
                          _mm512_castsi512_si256(c->flip));
}

/* Sixty-four floats to the bytes of their quantized values. */
QIR_INLINE __m512i qir_avx512_encode64(__m512 r0, __m512 r1, __m512 r2, __m512 r3,
                                       const struct qir_avx512_code *c) {
  const __m512i bytes = qir_avx512_narrow64(qir_avx512_round(r0, c), qir_avx512_round(r1, c),
                                            qir_avx512_round(r2, c), qir_avx512_round(r3, c), c);
  return _mm512_xor_si512(_mm512_max_epu8(bytes, c->floor), c->flip);
}

/* The same where qir_converts: bytes are clamped, in place of the floats, unless qir_spans. */
QIR_INLINE __m512i qir_avx512_encode64_bytes(__m512 r0, __m512 r1, __m512 r2, __m512 r3,
                                             const struct qir_avx512_code *c, int spans) {
  __m512i bytes = qir_avx512_narrow64(_mm512_cvtps_epi32(r0), _mm512_cvtps_epi32(r1),
                                      _mm512_cvtps_epi32(r2), _mm512_cvtps_epi32(r3), c);
  if (!spans) bytes = _mm512_min_epu8(_mm512_max_epu8(bytes, c->floor), c->ceiling);
  return _mm512_xor_si512(bytes, c->flip);
}

/* Sixteen codes as reals. */
QIR_INLINE __m512 qir_avx512_decode16(__m128i bytes, uint8_t flip) {
  return _mm512_cvtepi32_ps(flip ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
}

/* gcc 12 spills the sums of _mm512_dpbusd_epi32 in loops over arrays of them. */
#define QIR_DPBUSD(sum, left, right) \
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(left), "v"(right))

/* The same with weights in aligned memory. */
#define QIR_DPBUSD_FROM(sum, left, right) \
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(left), "m"(right))

QIR_TARGET_END
#endif
