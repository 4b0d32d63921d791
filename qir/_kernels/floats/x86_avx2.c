#include "sgemm.h"

#if defined(QIR_X86)
#include <immintrin.h>

QIR_TARGET_BEGIN("avx2,fma")

enum { NR = 8, VECS = 2 };
#define VEC __m256
#define ZERO _mm256_setzero_ps
#define LOAD _mm256_loadu_ps
#define SET1 _mm256_set1_ps
#define FMA _mm256_fmadd_ps
#define ADD _mm256_add_ps
#define MAX _mm256_max_ps
#define MIN _mm256_min_ps
#define STORE _mm256_storeu_ps
#define MASK __m256i
#define LANES(low, high) _mm256_andnot_si256(first8((size_t)(low)), first8((size_t)(high)))
#define LOAD_LANES(from, mask) _mm256_maskload_ps(from, mask)
#define LOAD_EVEN(from, low, high) \
  even(_mm256_maskload_ps(from, low), _mm256_maskload_ps((from) + NR, high))
#define LOAD_FIRST(from, n) _mm256_maskload_ps(from, first8(n))
#define STORE_FIRST(to, n, value) _mm256_maskstore_ps(to, first8(n), value)

static inline __attribute__((always_inline)) __m256i first8(size_t n) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < 8 ? (int)n : 8), lanes);
}

static inline __attribute__((always_inline)) __m256 even(__m256 low, __m256 high) {
  const __m256d pairs = _mm256_castps_pd(_mm256_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)));
  return _mm256_castpd_ps(_mm256_permute4x64_pd(pairs, _MM_SHUFFLE(3, 1, 2, 0)));
}

#include "tiles.h"
/* after what it uses */
#include "lines.h"

TILES(1, 6, 4, 2)
TILES(2, 6, 4, 2)

void qir_sgemm_avx2(const struct qir_sgemm_block *b) {
  if (b->width == NR)
    panel_1(b);
  else
    panel_2(b);
}

PLANES

LINES

void qir_unfold_avx2(const struct qir_unfold *how, float *panel) { any_unfold(how, panel); }

void qir_plane_avx2(const struct qir_plane *how, float *y) { any_plane(how, y); }

void qir_lines_avx2(const struct qir_lines *how, float *y) { any_lines(how, y); }

QIR_TARGET_END
#endif
