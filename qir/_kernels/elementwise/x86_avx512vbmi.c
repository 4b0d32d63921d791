#include "elementwise.h"

#if defined(QIR_X86)
#include <math.h>

#include "x86_avx512.h"

QIR_TARGET_BEGIN(QIR_AVX512_TARGET ",avx512vbmi,prefer-vector-width=512")

#define QIR_NAME(op) qir_elementwise_##op##_avx512vbmi
#define QIR_OWN_LOOKUP
#include "body.h"

/* The table is four registers: VPERMI2B reads two by seven bits, the eighth chooses the pair. */
void qir_elementwise_lookup_avx512vbmi(const uint8_t *table, const uint8_t *x, uint8_t *y,
                                       size_t n) {
  const __m512i t0 = _mm512_loadu_si512(table), t1 = _mm512_loadu_si512(table + 64);
  const __m512i t2 = _mm512_loadu_si512(table + 128), t3 = _mm512_loadu_si512(table + 192);
  for (size_t i = 0; i < n; i += 64) {
    const __mmask64 keep = qir_avx512_first64(n - i);
    const __m512i at = _mm512_maskz_loadu_epi8(keep, x + i);
    const __m512i low = _mm512_permutex2var_epi8(t0, at, t1);
    const __m512i high = _mm512_permutex2var_epi8(t2, at, t3);
    _mm512_mask_storeu_epi8(y + i, keep,
                            _mm512_mask_blend_epi8(_mm512_movepi8_mask(at), low, high));
  }
}

QIR_TARGET_END
#endif
