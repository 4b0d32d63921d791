#include "sgemm.h"

#if defined(QIR_ARM64)
#include <arm_neon.h>
#include <string.h>

enum { NR = 4, VECS = 4 };

/* Lanes from low to high - 1: there are no loads by a mask, so one that is not full is gathered. */
struct lanes {
  int low, high;
};

static inline __attribute__((always_inline)) float32x4_t load_lanes(const float *from,
                                                                    struct lanes of) {
  if (__builtin_expect(of.low == 0 && of.high == NR, 1)) return vld1q_f32(from);
  float lanes[NR] = {0};
  for (int l = of.low; l < of.high; ++l) lanes[l] = from[l];
  return vld1q_f32(lanes);
}

/* Every second of eight elements. */
static inline __attribute__((always_inline)) float32x4_t load_even(const float *from,
                                                                   struct lanes low,
                                                                   struct lanes high) {
  return vuzp1q_f32(load_lanes(from, low), load_lanes(from + NR, high));
}

static inline __attribute__((always_inline)) void store_first(float *to, size_t n,
                                                              float32x4_t value) {
  if (__builtin_expect(n >= NR, 1)) {
    vst1q_f32(to, value);
    return;
  }
  float lanes[NR];
  vst1q_f32(lanes, value);
  for (size_t l = 0; l < n; ++l) to[l] = lanes[l];
}

#define VEC float32x4_t
#define ZERO() vdupq_n_f32(0)
#define LOAD vld1q_f32
#define SET1 vdupq_n_f32
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#define ADD vaddq_f32
#define MAX(a, b) vbslq_f32(vcgtq_f32(a, b), a, b)
#define MIN(a, b) vbslq_f32(vcltq_f32(a, b), a, b)
#define STORE vst1q_f32
#define MASK struct lanes
#define LANES(low, high) ((struct lanes){(int)(low), (int)(high)})
#define LOAD_LANES(from, mask) load_lanes(from, mask)
#define LOAD_EVEN(from, low, high) load_even(from, low, high)
#define LOAD_FIRST(from, n) load_lanes(from, LANES(0, (n) < NR ? (n) : NR))
#define STORE_FIRST(to, n, value) store_first(to, n, value)

#include "tiles.h"
/* after what it uses */
#include "lines.h"

TILES(1, 8, 4, 2)
TILES(2, 8, 4, 2)
TILES(3, 8, 4, 2)
TILES(4, 6, 4, 2)

void qir_sgemm_neon(const struct qir_sgemm_block *b) {
  switch (b->width / NR) {
    case 1: panel_1(b); break;
    case 2: panel_2(b); break;
    case 3: panel_3(b); break;
    default: panel_4(b); break;
  }
}

PLANES

LINES

void qir_unfold_neon(const struct qir_unfold *how, float *panel) { any_unfold(how, panel); }

void qir_plane_neon(const struct qir_plane *how, float *y) { any_plane(how, y); }

void qir_lines_neon(const struct qir_lines *how, float *y) { any_lines(how, y); }
#endif
