#include "depthwise.h"

#if defined(QIR_X86)
#include "x86_avx512.h"

QIR_TARGET_BEGIN(QIR_AVX512VNNI_TARGET)

enum { BLOCK = 64, LANES = 4 };

#define UNROLL _Pragma("GCC unroll 16")

/* Sixty-four channels of a group of four taps, the taps of a channel side by side; or their sums.
 */
struct column {
  __m512i v[4];
};

/*
 * What is the same for all pixels of a block of channels. Half a block, of 32 channels or less, is
 * taken of two pixels at once, half a run apart: `far` bytes of x, `far_y` of y.
 */
struct block {
  const uint8_t *const *taps;
  size_t c;
  __mmask64 keep;
  int flipped, paired;
  int full;  /* no channel is left out */
  int plain; /* codes that qir_converts */
  int spans; /* and qir_spans */
  size_t far, far_y;
  /* How many columns are padding, then from which on: of the other pixel if there are two. */
  size_t before, blank;
  size_t column; /* bytes of one */
  uint8_t pad;
  const int8_t *weights;
  const int32_t *bias;
  const float *multiplier;
  void *y;
  int to_float;
};

/* The bytes of half a block of one pixel. */
QIR_INLINE __m256i load_half(const struct block *b, const uint8_t *from) {
  return b->full ? _mm256_loadu_si256((const __m256i *)from)
                 : _mm256_maskz_loadu_epi8((__mmask32)b->keep, from);
}

QIR_INLINE __m512i flip(const struct block *b, __m512i x) {
  return b->flipped ? _mm512_xor_si512(x, _mm512_set1_epi8((char)0x80)) : x;
}

QIR_INLINE __m512i load(const struct block *b, size_t tap, size_t at) {
  const uint8_t *from = b->taps[tap] + at + b->c;
  if (b->paired)
    return flip(b, _mm512_inserti64x4(_mm512_castsi256_si512(load_half(b, from)),
                                      load_half(b, from + b->far), 1));
  return flip(b, b->full ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi8(b->keep, from));
}

QIR_INLINE struct column interleave(__m512i r0, __m512i r1, __m512i r2, __m512i r3) {
  const __m512i a = _mm512_unpacklo_epi8(r0, r1), b = _mm512_unpackhi_epi8(r0, r1);
  const __m512i d = _mm512_unpacklo_epi8(r2, r3), e = _mm512_unpackhi_epi8(r2, r3);
  return (struct column){{_mm512_unpacklo_epi16(a, d), _mm512_unpackhi_epi16(a, d),
                          _mm512_unpacklo_epi16(b, e), _mm512_unpackhi_epi16(b, e)}};
}

QIR_INLINE struct column opening(const struct block *b) {
  struct column sum;
  UNROLL for (int i = 0; i < 4; ++i) sum.v[i] = _mm512_loadu_si512(b->bias + 16 * i);
  return sum;
}

QIR_INLINE void add(struct column *sum, const struct column *x, const struct column *w) {
  UNROLL for (int i = 0; i < 4; ++i) QIR_DPBUSD(sum->v[i], x->v[i], w->v[i]);
}

/* The same, where the first two products of a channel, and the last two, saturate in 16 bits. */
QIR_INLINE void add_pairs(struct column *sum, const struct column *x, const struct column *w) {
  const __m512i ones = _mm512_set1_epi16(1);
  UNROLL for (int i = 0; i < 4; ++i) sum->v[i] =
      _mm512_add_epi32(sum->v[i], _mm512_madd_epi16(_mm512_maddubs_epi16(x->v[i], w->v[i]), ones));
}

QIR_INLINE struct column weights_at(const void *weights, size_t at) {
  struct column w;
  UNROLL for (int i = 0; i < 4; ++i) w.v[i] =
      _mm512_loadu_si512((const int8_t *)weights + at + 64 * i);
  return w;
}

/* Stores floats in the order of channels: vector i has in its lane l channels 16 l + 4 i onwards.
 */
QIR_INLINE void store_floats(const struct block *b, size_t at, const __m512 real[4]) {
  const __m512 a = _mm512_shuffle_f32x4(real[0], real[1], 0x44);
  const __m512 d = _mm512_shuffle_f32x4(real[0], real[1], 0xee);
  const __m512 e = _mm512_shuffle_f32x4(real[2], real[3], 0x44);
  const __m512 f = _mm512_shuffle_f32x4(real[2], real[3], 0xee);
  const __m512 lanes[4] = {_mm512_shuffle_f32x4(a, e, 0x88), _mm512_shuffle_f32x4(a, e, 0xdd),
                           _mm512_shuffle_f32x4(d, f, 0x88), _mm512_shuffle_f32x4(d, f, 0xdd)};
  float *y = (float *)b->y + at;
  const int some = b->paired ? 2 : 4; /* vectors of one pixel */
  UNROLL for (int i = 0; i < 4; ++i) {
    float *to = y + (i < some ? 0 : b->far_y) + i % some * 16;
    const __mmask16 keep = (__mmask16)(b->keep >> i % some * 16);
    if (keep) _mm512_mask_storeu_ps(to, keep, lanes[i]);
  }
}

QIR_INLINE void store_half(const struct block *b, uint8_t *to, __m256i bytes) {
  if (b->full)
    _mm256_storeu_si256((__m256i *)to, bytes);
  else
    _mm256_mask_storeu_epi8(to, (__mmask32)b->keep, bytes);
}

QIR_INLINE void store_bytes(const struct block *b, uint8_t *to, __m512i bytes) {
  if (b->full)
    _mm512_storeu_si512(to, bytes);
  else
    _mm512_mask_storeu_epi8(to, b->keep, bytes);
}

QIR_INLINE void store(const struct block *b, size_t at, const struct column *sum,
                      const struct qir_avx512_code *code) {
  __m512 real[4];
  UNROLL for (int i = 0; i < 4; ++i) real[i] =
      _mm512_mul_ps(_mm512_cvtepi32_ps(sum->v[i]), _mm512_loadu_ps(b->multiplier + 16 * i));
  if (!b->plain && b->to_float) {
    store_floats(b, at, real);
    return;
  }
  const __m512i y =
      b->plain ? qir_avx512_encode64_bytes(real[0], real[1], real[2], real[3], code, b->spans)
               : qir_avx512_encode64(real[0], real[1], real[2], real[3], code);
  uint8_t *to = (uint8_t *)b->y + at;
  if (!b->paired) {
    store_bytes(b, to, y);
  } else {
    store_half(b, to, _mm512_castsi512_si256(y));
    store_half(b, to + b->far_y, _mm512_extracti64x4_epi64(y, 1));
  }
}

/* Each of these takes the pixels from first to end of one block. */

QIR_INLINE void any_window(const struct qir_depthwise_run *run, const struct block *b, size_t first,
                           size_t end) {
  const struct qir_avx512_code code = qir_avx512_load_code(&run->code);
  const size_t taps = run->groups * LANES;
  for (size_t ox = first; ox < end; ++ox) {
    const size_t at = ox * run->step;
    struct column sum = opening(b);
    for (size_t t = 0; t < taps; t += LANES) {
      const struct column x =
          interleave(load(b, t, at), load(b, t + 1, at), load(b, t + 2, at), load(b, t + 3, at));
      const struct column w = weights_at(b->weights, t * BLOCK);
      if (run->pairs)
        add_pairs(&sum, &x, &w);
      else
        add(&sum, &x, &w);
    }
    store(b, ox * run->channels, &sum, &code);
  }
}

/* The column of a window of 3 by 3 that begins at `tap`, `at` bytes on. */
QIR_INLINE struct column column_at(const struct block *b, size_t tap, size_t at) {
  return interleave(load(b, tap, at), load(b, tap + 1, at), load(b, tap + 2, at),
                    _mm512_setzero_si512());
}

/* A window of 3 by 3 that moves by more than one. */
QIR_INLINE void jump(const struct qir_depthwise_run *run, const struct block *b, size_t first,
                     size_t end) {
  const struct qir_avx512_code code = qir_avx512_load_code(&run->code);
  const struct column left = weights_at(b->weights, 0);
  const struct column middle = weights_at(b->weights, BLOCK * LANES);
  const struct column right = weights_at(b->weights, 2 * BLOCK * LANES);
  for (size_t ox = first; ox < end; ++ox) {
    const size_t at = ox * run->step;
    struct column sum = opening(b);
    struct column x = column_at(b, 0, at);
    add(&sum, &x, &left);
    x = column_at(b, LANES, at);
    add(&sum, &x, &middle);
    x = column_at(b, 2 * LANES, at);
    add(&sum, &x, &right);
    store(b, ox * run->channels, &sum, &code);
  }
}

/* One line of two pixels' columns, of which the one, or the `far` one, is padding. */
QIR_INLINE __m512i half_blank(const struct block *b, size_t tap, size_t at, int far) {
  const uint8_t *from = b->taps[tap] + at + b->c;
  const __m256i blank = _mm256_set1_epi8((char)b->pad);
  const __m256i x = load_half(b, far ? from : from + b->far);
  return flip(b, _mm512_inserti64x4(_mm512_castsi256_si512(far ? x : blank), far ? blank : x, 1));
}

/* One line of column k, `at` bytes on, of those that a run slides over. */
QIR_INLINE __m512i line_at(const struct block *b, size_t tap, size_t at, size_t k) {
  if (__builtin_expect(k >= b->before && k < b->blank, 1)) return load(b, tap, at);
  if (!b->paired) return flip(b, _mm512_set1_epi8((char)b->pad));
  return half_blank(b, tap, at, k >= b->blank);
}

/* Bytes from the first column that is not padding to column k, which wrap where it is before. */
QIR_INLINE size_t offset(const struct block *b, size_t k) { return (k - b->before) * b->column; }

/* Column k, of which only the first and the last may be padding. */
QIR_INLINE struct column end_column(const struct block *b, size_t k) {
  const size_t at = offset(b, k);
  return interleave(line_at(b, 0, at, k), line_at(b, 1, at, k), line_at(b, 2, at, k),
                    _mm512_setzero_si512());
}

/* The same block whose lines are pointed to by registers: no store of a result can change them. */
QIR_INLINE struct block with_lines(const struct block *b, const uint8_t **lines, int count) {
  struct block own = *b;
  UNROLL for (int i = 0; i < count; ++i) lines[i] = b->taps[i];
  own.taps = lines;
  return own;
}

/*
 * A window of 3 by 3 that moves by one: a column of the input is the right one of a pixel, the
 * middle one of the next and the left one of the one after, so it is interleaved once for three.
 */
QIR_INLINE void slide(const struct qir_depthwise_run *run, const struct block *any, size_t first,
                      size_t end) {
  const uint8_t *lines[3];
  const struct block own = with_lines(any, lines, 3), *const b = &own;
  const struct qir_avx512_code code = qir_avx512_load_code(&run->code);
  const size_t channels = run->channels;
  const struct column left = weights_at(b->weights, 0);
  const struct column middle = weights_at(b->weights, BLOCK * LANES);
  const struct column right = weights_at(b->weights, 2 * BLOCK * LANES);
  struct column s0 = opening(b), s1 = opening(b), s2;
  struct column x = end_column(b, first);
  add(&s0, &x, &left);
  x = end_column(b, first + 1);
  add(&s0, &x, &middle);
  add(&s1, &x, &left);
  size_t at = offset(b, first + 2), to = first * channels;
#define PIXEL(taken)        \
  x = taken;                \
  s2 = opening(b);          \
  add(&s0, &x, &right);     \
  store(b, to, &s0, &code); \
  add(&s1, &x, &middle);    \
  add(&s2, &x, &left);      \
  s0 = s1;                  \
  s1 = s2;                  \
  at += b->column;          \
  to += channels;
  for (size_t ox = first; ox + 1 < end; ++ox) {
    PIXEL(column_at(b, 0, at))
  }
  PIXEL(end_column(b, end + 1))
#undef PIXEL
}

/* The same of one that moves by two: the right column of a pixel is the left one of the next. */
QIR_INLINE void stride(const struct qir_depthwise_run *run, const struct block *any, size_t first,
                       size_t end) {
  const uint8_t *lines[3];
  const struct block own = with_lines(any, lines, 3), *const b = &own;
  const struct qir_avx512_code code = qir_avx512_load_code(&run->code);
  const struct column left = weights_at(b->weights, 0);
  const struct column middle = weights_at(b->weights, BLOCK * LANES);
  const struct column right = weights_at(b->weights, 2 * BLOCK * LANES);
  struct column x = end_column(b, 2 * first);
  const size_t channels = run->channels;
  size_t at = offset(b, 2 * first + 1), to = first * channels;
#define PIXEL(taken)                           \
  {                                            \
    struct column sum = opening(b);            \
    add(&sum, &x, &left);                      \
    x = column_at(b, 0, at); /* never blank */ \
    add(&sum, &x, &middle);                    \
    x = taken;                                 \
    add(&sum, &x, &right);                     \
    store(b, to, &sum, &code);                 \
    at += 2 * b->column;                       \
    to += channels;                            \
  }
  for (size_t ox = first; ox + 1 < end; ++ox) PIXEL(column_at(b, 0, at + b->column))
  PIXEL(end_column(b, 2 * end))
#undef PIXEL
}

/*
 * Windows of 5 by 5 have two groups a column: four lines, and the fifth, whose bytes are spread.
 * Their weights are read from memory.
 */
struct tall {
  struct column four, fifth;
};

/* Bytes i to i + 3 of each lane, as words. */
#define SPREAD(x, i)                                                                               \
  _mm512_shuffle_epi8(                                                                             \
      x, _mm512_broadcast_i32x4(_mm_setr_epi8(i, -1, -1, -1, i + 1, -1, -1, -1, i + 2, -1, -1, -1, \
                                              i + 3, -1, -1, -1)))

QIR_INLINE struct tall tall_column(const struct block *b, size_t k) {
  const size_t at = offset(b, k);
  const __m512i last = line_at(b, 4, at, k);
  struct tall x;
  x.four = interleave(line_at(b, 0, at, k), line_at(b, 1, at, k), line_at(b, 2, at, k),
                      line_at(b, 3, at, k));
  x.fifth = (struct column){{SPREAD(last, 0), SPREAD(last, 4), SPREAD(last, 8), SPREAD(last, 12)}};
  return x;
}

/* Adds the products of a column by those of column kx of the window. */
QIR_INLINE void add_tall(const struct block *b, struct column *sum, const struct tall *x, int kx) {
  const __m512i *w = (const __m512i *)(b->weights + kx * 2 * BLOCK * LANES);
  __asm__("" : "+r"(w)); /* else gcc keeps an address for each operand, and those in memory */
  UNROLL for (int i = 0; i < 4; ++i) QIR_DPBUSD_FROM(sum->v[i], x->four.v[i], w[i]);
  UNROLL for (int i = 0; i < 4; ++i) QIR_DPBUSD_FROM(sum->v[i], x->fifth.v[i], w[4 + i]);
}

QIR_INLINE void slide_tall(const struct qir_depthwise_run *run, const struct block *any,
                           size_t first, size_t end) {
  const struct qir_avx512_code code = qir_avx512_load_code(&run->code);
  const uint8_t *lines[5];
  const struct block own = with_lines(any, lines, 5), *const b = &own;
  struct column s0 = opening(b), s1 = opening(b), s2 = opening(b), s3 = opening(b), s4;
  struct tall x = tall_column(b, first);
  add_tall(b, &s0, &x, 0);
  x = tall_column(b, first + 1);
  add_tall(b, &s0, &x, 1);
  add_tall(b, &s1, &x, 0);
  x = tall_column(b, first + 2);
  add_tall(b, &s0, &x, 2);
  add_tall(b, &s1, &x, 1);
  add_tall(b, &s2, &x, 0);
  x = tall_column(b, first + 3);
  add_tall(b, &s0, &x, 3);
  add_tall(b, &s1, &x, 2);
  add_tall(b, &s2, &x, 1);
  add_tall(b, &s3, &x, 0);
  for (size_t ox = first; ox < end; ++ox) {
    x = tall_column(b, ox + 4);
    s4 = opening(b);
    add_tall(b, &s0, &x, 4);
    store(b, ox * run->channels, &s0, &code);
    add_tall(b, &s1, &x, 3);
    add_tall(b, &s2, &x, 2);
    add_tall(b, &s3, &x, 1);
    add_tall(b, &s4, &x, 0);
    s0 = s1;
    s1 = s2;
    s2 = s3;
    s3 = s4;
  }
}

QIR_INLINE void stride_tall(const struct qir_depthwise_run *run, const struct block *any,
                            size_t first, size_t end) {
  const struct qir_avx512_code code = qir_avx512_load_code(&run->code);
  const uint8_t *lines[5];
  const struct block own = with_lines(any, lines, 5), *const b = &own;
  struct column now = opening(b), next = opening(b);
  struct tall x = tall_column(b, 2 * first);
  add_tall(b, &now, &x, 0);
  x = tall_column(b, 2 * first + 1);
  add_tall(b, &now, &x, 1);
  x = tall_column(b, 2 * first + 2);
  add_tall(b, &now, &x, 2);
  add_tall(b, &next, &x, 0);
  for (size_t ox = first; ox < end; ++ox) {
    x = tall_column(b, 2 * ox + 3);
    add_tall(b, &now, &x, 3);
    add_tall(b, &next, &x, 1);
    x = tall_column(b, 2 * ox + 4);
    add_tall(b, &now, &x, 4);
    store(b, ox * run->channels, &now, &code);
    add_tall(b, &next, &x, 2);
    now = next;
    next = opening(b);
    add_tall(b, &next, &x, 0);
  }
}

typedef void (*way_fn)(const struct qir_depthwise_run *, const struct block *, size_t, size_t);

/* One function for each way and these constants; whole blocks of bounded codes go by their masks.
 */
#define WAY(name, flip_, pair, end, whole)                                                       \
  static void name##_##flip_##pair##end##whole(                                                  \
      const struct qir_depthwise_run *run, const struct block *any, size_t first, size_t last) { \
    struct block b = *any;                                                                       \
    b.flipped = flip_;                                                                           \
    b.paired = pair;                                                                             \
    b.plain = end;                                                                               \
    b.full = whole > 0;                                                                          \
    if (whole) b.spans = whole == 2;                                                             \
    name(run, &b, first, last);                                                                  \
  }
#define ENDS(name, flip_, pair) \
  WAY(name, flip_, pair, 0, 0)  \
  WAY(name, flip_, pair, 1, 0) WAY(name, flip_, pair, 1, 1) WAY(name, flip_, pair, 1, 2)
#define ROW(name, flip_, pair)                                                   \
  {name##_##flip_##pair##00, name##_##flip_##pair##10, name##_##flip_##pair##11, \
   name##_##flip_##pair##12}
#define WAYS(name)                                                            \
  ENDS(name, 0, 0)                                                            \
  ENDS(name, 0, 1)                                                            \
  ENDS(name, 1, 0)                                                            \
  ENDS(name, 1, 1)                                                            \
  static const way_fn name##s[2][2][4] = {{ROW(name, 0, 0), ROW(name, 0, 1)}, \
                                          {ROW(name, 1, 0), ROW(name, 1, 1)}};
WAYS(any_window)
WAYS(jump)
WAYS(slide)
WAYS(stride)
WAYS(slide_tall)
WAYS(stride_tall)

void qir_depthwise_avx512vnni(const struct qir_depthwise_run *run) {
  const size_t width = run->width, half = width / 2;
  const int tall = run->size == 5;
  const way_fn(*ways)[4] = (run->slides == 1   ? tall ? slide_talls : slides
                            : run->slides == 2 ? tall ? stride_talls : strides
                            : run->size == 3   ? jumps
                                               : any_windows)[run->x_flip ? 1 : 0];
  const int plain = !run->to_float && run->converts;
  const int wholly = plain ? 1 + qir_spans(&run->code) : 0; /* what is added for whole blocks */
  const size_t blank = run->before + run->line, far = half * run->slides;
  const int pairs = half > 0 && (!run->slides || far >= run->size / 2); /* far from both ends */
  for (size_t c = 0; c < run->channels; c += BLOCK) {
    const size_t left = qir_depthwise_left(run, c);
    struct block b = {
        .taps = run->taps,
        .c = c,
        .keep = qir_avx512_first64(left),
        .far = half * run->step,
        .far_y = half * run->channels,
        .weights = (const int8_t *)run->weights + c * run->groups * LANES,
        .bias = run->bias + c,
        .multiplier = run->multiplier + c,
        .y = (char *)run->y + c * (run->to_float ? 4 : 1),
        .to_float = run->to_float,
        .before = run->before,
        .blank = blank,
        .column = run->channels,
        .pad = run->pad,
        .spans = qir_spans(&run->code),
    };
    const int whole = left >= BLOCK ? wholly : 0;
    if (left > BLOCK / 2 || !pairs) {
      ways[0][plain + whole](run, &b, 0, width);
    } else {
      b.blank = blank - far;
      ways[1][plain + (left == BLOCK / 2 ? wholly : 0)](run, &b, 0, half);
      b.blank = blank;
      if (width % 2) ways[0][plain](run, &b, width - 1, width);
    }
  }
}

QIR_TARGET_END
#endif
