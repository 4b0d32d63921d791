#include "wide.h"

#if defined(QIR_X86)
#include <math.h>

#include "x86_avx512.h"

QIR_TARGET_BEGIN(QIR_AVX512_TARGET ",prefer-vector-width=512")

#define UNROLL _Pragma("GCC unroll 16")

enum { LANES = 8, ROWS = 6, VECTORS = QIR_WIDE_COLUMNS / LANES };

/* By hand: of an array of sums the compiler makes copies in memory, which few terms do not repay.
 */
QIR_INLINE void multiply(const double *a, const double *panel, size_t k, __m512d s[ROWS][VECTORS]) {
  UNROLL for (int r = 0; r < ROWS; ++r) UNROLL for (int j = 0; j < VECTORS; ++j) s[r][j] =
      _mm512_setzero_pd();
  for (size_t p = 0; p < k; ++p, panel += QIR_WIDE_COLUMNS) {
    __m512d right[VECTORS];
    UNROLL for (int j = 0; j < VECTORS; ++j) right[j] = _mm512_loadu_pd(panel + j * LANES);
    UNROLL for (int r = 0; r < ROWS; ++r) {
      const __m512d left = _mm512_set1_pd(a[(size_t)r * k + p]);
      UNROLL for (int j = 0; j < VECTORS; ++j) s[r][j] = _mm512_fmadd_pd(left, right[j], s[r][j]);
    }
  }
}

void qir_wide_tile_avx512(const double *a, const double *panel, size_t k, double *sums) {
  __m512d s[ROWS][VECTORS];
  multiply(a, panel, k, s);
  UNROLL for (int r = 0; r < ROWS; ++r) UNROLL for (int j = 0; j < VECTORS; ++j)
      _mm512_storeu_pd(sums + r * QIR_WIDE_COLUMNS + j * LANES, s[r][j]);
}

void qir_wide_floats_avx512(const double *a, const double *panel, size_t k,
                            const struct qir_wide_floats *to) {
  __m512d s[ROWS][VECTORS], bias[VECTORS];
  multiply(a, panel, k, s);
  const uint32_t all = to->columns >= QIR_WIDE_COLUMNS ? UINT32_MAX : (1u << to->columns) - 1;
  UNROLL for (int j = 0; j < VECTORS; ++j) bias[j] =
      _mm512_maskz_loadu_pd((__mmask8)(all >> j * LANES), to->bias + j * LANES);
  UNROLL for (int r = 0; r < ROWS; ++r) {
    if ((size_t)r >= to->rows) return;
    float *y = to->y + (size_t)r * to->y_row;
    UNROLL for (int j = 0; j < VECTORS; ++j)
        _mm256_mask_storeu_ps(y + j * LANES, (__mmask8)(all >> j * LANES),
                              _mm512_cvtpd_ps(_mm512_add_pd(s[r][j], bias[j])));
  }
}

#define QIR_NAME(op) qir_wide_##op##_avx512
#define QIR_PART 32
#define QIR_OWN_TILES
#define QIR_PLUS(a, b, sum) fma(a, b, sum)
#include "body.h"

QIR_TARGET_END
#endif
