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
#define STORE _mm512_storeu_ps
#define MASK __mmask16
#define LANES(low, high) ((__mmask16)(((1u << (high)) - 1) & ~((1u << (low)) - 1)))
#define LOAD_LANES(from, mask) _mm512_maskz_loadu_ps(mask, from)
#define LOAD_EVEN(from, low, high)                                 \
  _mm512_permutex2var_ps(_mm512_maskz_loadu_ps(low, from), even(), \
                         _mm512_maskz_loadu_ps(high, (from) + NR))
#define LOAD_FIRST(from, n) _mm512_maskz_loadu_ps(qir_avx512_first16(n), from)
#define STORE_FIRST(to, n, value) _mm512_mask_storeu_ps(to, qir_avx512_first16(n), value)

static inline __attribute__((always_inline)) __m512i even(void) {
  return _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}

#include "tiles.h"
/* after what it uses */
#include "lines.h"

TILES(1, 8, 4, 2)
TILES(2, 8, 4, 2)
TILES(3, 8, 4, 2)
TILES(4, 6, 4, 2)

void qir_sgemm_avx512(const struct qir_sgemm_block *b) {
  switch (b->width / NR) {
    case 1: panel_1(b); break;
    case 2: panel_2(b); break;
    case 3: panel_3(b); break;
    default: panel_4(b); break;
  }
}

PLANES

LINES

void qir_unfold_avx512(const struct qir_unfold *how, float *panel) { any_unfold(how, panel); }

void qir_plane_avx512(const struct qir_plane *how, float *y) { any_plane(how, y); }

void qir_lines_avx512(const struct qir_lines *how, float *y) { any_lines(how, y); }

QIR_TARGET_END
#endif
