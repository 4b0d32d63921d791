#include "windows.h"

#if defined(QIR_X86)
#include <string.h>

#include "x86_avx512.h"

QIR_TARGET_BEGIN(QIR_AVX512_TARGET ",avx512vnni")

enum {
  NR = 16,
  SIDE = QIR_WINDOW_SIDE,
  LINE = QIR_WINDOW_LINE,
  WORDS = QIR_WINDOW_WORDS,
  WINDOW = 32, /* bytes that a gathered window takes */
  RING = 64,   /* gathered windows */
  AHEAD = 16,  /* gathered before they are read: else loads would wait for the stores */
  SUMS = 4,    /* vectors of a group, whose bytes fill one */
  VECTORS = 2, /* of columns, at most */
};

#define UNROLL _Pragma("GCC unroll 32")

/* Products in the order of the source, which does better than the compiler's own. */
#define DPBUSD(sum, left, right) \
  __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(left), "v"(right))

/* Half a vector to memory. A plain store of a vector would take a turn of a multiplication. */
#define STORE_HALF(to, bytes, half) \
  __asm__ volatile("vextracti64x4 $" #half ", %1, %0" : "=m"(*(char (*)[32])(to)) : "v"(bytes))

/* Where the next window is. */
struct cursor {
  const struct qir_window_segment *segment, *end;
  const uint8_t *lines[SIDE];
  size_t at, step, left; /* left: windows of the segment, 0 if no window is left */
};

QIR_INLINE void open_segment(struct cursor *c) {
  UNROLL for (int k = 0; k < SIDE; ++k) c->lines[k] = c->segment->lines[k];
  c->left = c->segment->count;
  c->at = 0;
}

/*
 * Gathers a window by general registers, which have little else to do. Each line writes up to three
 * bytes too many, over which the next one is written.
 */
QIR_INLINE void gather(struct cursor *c, int flipped, char *to) {
  UNROLL for (int k = 0; k < SIDE; ++k) {
    uint64_t low;
    uint32_t high;
    memcpy(&low, c->lines[k] + c->at, sizeof low);
    memcpy(&high, c->lines[k] + c->at + sizeof low, sizeof high);
    if (flipped) low ^= 0x8080808080808080u;
    if (flipped) high ^= 0x80808080u;
    __asm__("" : "+r"(high)); /* else gcc stores it by a vector register */
    memcpy(to + k * LINE, &low, sizeof low);
    memcpy(to + k * LINE + sizeof low, &high, sizeof high);
  }
  c->at += c->step;
}

/* Gathers the next m windows, or those that are left. */
QIR_INLINE void gather_group(struct cursor *c, int m, int flipped, char *to) {
  if (__builtin_expect(c->left > (size_t)m, 1)) {
    UNROLL for (int r = 0; r < m; ++r) gather(c, flipped, to + r * WINDOW);
    c->left -= (size_t)m;
    return;
  }
  for (int r = 0; r < m && c->left; ++r) {
    gather(c, flipped, to + r * WINDOW);
    if (--c->left == 0 && ++c->segment < c->end) open_segment(c);
  }
}

QIR_INLINE __m512i word(const char *from) {
  int32_t value;
  memcpy(&value, from, sizeof value);
  return _mm512_set1_epi32(value);
}

/* Stores 64 bytes, those of 4 / v windows, of which the columns `keep` exist. */
QIR_INLINE void store(char *y, size_t stride, int v, int whole, __mmask32 keep, __m512i bytes) {
  if (v == 2) {
    bytes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), bytes);
    if (whole) {
      STORE_HALF(y, bytes, 0);
      STORE_HALF(y + stride, bytes, 1);
    } else {
      _mm256_mask_storeu_epi8(y, keep, _mm512_castsi512_si256(bytes));
      _mm256_mask_storeu_epi8(y + stride, keep, _mm512_extracti64x4_epi64(bytes, 1));
    }
    return;
  }
  bytes = _mm512_permutexvar_epi32(
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes);
  const __m128i row[] = {_mm512_castsi512_si128(bytes), _mm512_extracti32x4_epi32(bytes, 1),
                         _mm512_extracti32x4_epi32(bytes, 2), _mm512_extracti32x4_epi32(bytes, 3)};
  UNROLL for (int r = 0; r < 4; ++r, y += stride) _mm_mask_storeu_epi8(y, (__mmask16)keep, row[r]);
}

/* Sums and results of m windows by v vectors of columns. */
struct panel {
  int v, m; /* SUMS / v */
  const int32_t *bias;
  const float *multiplier;
  __m512i weights[WORDS * VECTORS]; /* they stay in registers */
  struct qir_avx512_code code;
};

QIR_INLINE void add(const struct panel *p, const char *windows, __m512i sum[]) {
  const int m = p->m, v = p->v;
  UNROLL for (int k = 0; k < SUMS; ++k) sum[k] = _mm512_loadu_si512(p->bias + k % v * NR);
  UNROLL for (int i = 0; i < WORDS; ++i) {
    UNROLL for (int r = 0; r < m; ++r) {
      const __m512i left = word(windows + r * WINDOW + i * 4);
      UNROLL for (int j = 0; j < v; ++j) DPBUSD(sum[r * v + j], left, p->weights[i * v + j]);
    }
  }
}

QIR_INLINE void finish(const struct panel *p, const __m512i sum[], char *y, size_t stride,
                       int whole, __mmask32 keep) {
  __m512 real[SUMS];
  UNROLL for (int k = 0; k < SUMS; ++k) real[k] =
      _mm512_mul_ps(_mm512_cvtepi32_ps(sum[k]), _mm512_loadu_ps(p->multiplier + k % p->v * NR));
  store(y, stride, p->v, whole, keep,
        qir_avx512_encode64_bytes(real[0], real[1], real[2], real[3], &p->code, 0));
}

/*
 * Windows times a panel, m at a time. The results of a group are stored while the next one is
 * summed: as they wait for nothing, both proceed at once.
 */
QIR_INLINE void run_panel(const struct qir_window_run *run, int v, int flipped, int whole) {
  enum { BYTES = RING * WINDOW };
  const int m = SUMS / v;
  struct panel p = {.v = v, .m = m, .bias = run->bias, .multiplier = run->multiplier};
  p.code = qir_avx512_load_code(&run->code);
  UNROLL for (int i = 0; i < WORDS * v; ++i) p.weights[i] =
      _mm512_load_si512((const char *)run->panel + (size_t)i * NR * 4);
  const size_t stride = run->y_stride, group = (size_t)m, bytes = group * WINDOW;
  const size_t groups = run->windows / group, rest = run->windows % group;
  const __mmask32 keep = (__mmask32)qir_avx512_first64(run->columns);
  _Alignas(64) char ring[BYTES];
  struct cursor cursor = {.segment = run->segments, .end = run->segments + run->count};
  cursor.step = run->step;
  open_segment(&cursor);
  for (int i = 0; i < AHEAD; i += m) gather_group(&cursor, m, flipped, ring + i * WINDOW);
  char *y = run->y;
  size_t at = 0;
  __m512i last[SUMS], sum[SUMS];
  add(&p, ring, last);
  for (size_t i = 1; i < groups; ++i, y += group * stride) {
    gather_group(&cursor, m, flipped, ring + (at + AHEAD * WINDOW) % BYTES);
    at = (at + bytes) % BYTES;
    add(&p, ring + at, sum);
    finish(&p, last, y, stride, whole, keep);
    UNROLL for (int k = 0; k < SUMS; ++k) last[k] = sum[k];
  }
  if (groups) {
    finish(&p, last, y, stride, whole, keep);
    y += group * stride;
    at = (at + bytes) % BYTES;
  }
  if (!rest) return;
  char spare[SUMS * NR];
  add(&p, ring + at, last);
  finish(&p, last, spare, (size_t)v * NR, 1, ~(__mmask32)0);
  for (size_t r = 0; r < rest; ++r, y += stride)
    memcpy(y, spare + r * (size_t)v * NR, run->columns);
}

#define PANEL(v, flipped, whole)                                      \
  static __attribute__((noinline)) void panel_##v##_##flipped##whole( \
      const struct qir_window_run *run) {                             \
    run_panel(run, v, flipped, whole);                                \
  }
#define PANELS(v) PANEL(v, 0, 0) PANEL(v, 0, 1) PANEL(v, 1, 0) PANEL(v, 1, 1)
PANELS(1)
PANELS(2)

typedef void (*panel_fn)(const struct qir_window_run *);
#define ROW(v)                                                           \
  {                                                                      \
    {panel_##v##_00, panel_##v##_01}, { panel_##v##_10, panel_##v##_11 } \
  }
static const panel_fn panels[VECTORS][2][2] = {ROW(1), ROW(2)};

void qir_windows_avx512vnni(const struct qir_window_run *run) {
  panels[run->width / NR - 1][run->x_flip ? 1 : 0][run->columns == run->width](run);
}

QIR_TARGET_END
#endif
