#include "sgemm.h"

#if defined(QIR_X86)
#include "x86_avx512.h"

QIR_TARGET_BEGIN(QIR_AVX512_TARGET)

enum { NR = 16, VECS = 4 };
#define VEC __m512
#define ZERO _mm512_setzero_ps
#define LOAD _mm512_loadu_ps
#define SET1 _mm512_set1_ps
#define FMA _mm512_fmadd_ps
#define ADD _mm512_add_ps
#define MAX _mm512_max_ps
#define MIN _mm512_min_ps
#define LOAD_FIRST(from, n) _mm512_maskz_loadu_ps(qir_avx512_first16(n), from)
#define STORE_FIRST(to, n, value) _mm512_mask_storeu_ps(to, qir_avx512_first16(n), value)

#include "tiles.h"

TILES(1, 8, 4, 2)
TILES(2, 8, 4, 2)
TILES(3, 8, 4, 2)
TILES(4, 6, 4, 2)

void qir_sgemm_avx512vnni(const struct qir_sgemm_block *b) {
  switch (b->width / NR) {
    case 1: panel_1(b); break;
    case 2: panel_2(b); break;
    case 3: panel_3(b); break;
    default: panel_4(b); break;
  }
}

void qir_taps_avx512vnni(const struct qir_taps *how, float *y, size_t n) { all_taps(how, y, n); }

QIR_TARGET_END
#endif
