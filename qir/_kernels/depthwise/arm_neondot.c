#include "depthwise.h"

#if defined(QIR_ARM64)
#include "arm_vectors.h"

QIR_TARGET_BEGIN(QIR_NEONDOT_TARGET)

enum { BLOCK = 16, LANES = 4, GROUP = BLOCK * LANES /* bytes of weights */ };

/* One function for each window keeps the compiler's allocation of registers local. */
#define NOINLINE __attribute__((noinline))

/* Sixteen channels of four taps, the taps of a channel side by side; or their sums. */
struct column {
  int8x16_t v[4];
};
struct sums {
  int32x4_t v[4];
};

/* What is the same for all pixels of a block of channels. */
struct block {
  const struct qir_depthwise_run *run;
  size_t c, left;
  uint8x16_t flip; /* what makes a byte signed */
  const int8_t *weights;
  const int32_t *bias;
  const float *multiplier;
  struct qir_arm_code code;
};

QIR_INLINE uint8x16_t load(const struct block *b, size_t tap, size_t at) {
  return veorq_u8(qir_arm_load(b->run->taps[tap] + at + b->c, b->left), b->flip);
}

QIR_INLINE struct column interleave(uint8x16_t r0, uint8x16_t r1, uint8x16_t r2, uint8x16_t r3) {
  const uint16x8_t a = vreinterpretq_u16_u8(vzip1q_u8(r0, r1));
  const uint16x8_t b = vreinterpretq_u16_u8(vzip2q_u8(r0, r1));
  const uint16x8_t c = vreinterpretq_u16_u8(vzip1q_u8(r2, r3));
  const uint16x8_t d = vreinterpretq_u16_u8(vzip2q_u8(r2, r3));
  return (struct column){
      {vreinterpretq_s8_u16(vzip1q_u16(a, c)), vreinterpretq_s8_u16(vzip2q_u16(a, c)),
       vreinterpretq_s8_u16(vzip1q_u16(b, d)), vreinterpretq_s8_u16(vzip2q_u16(b, d))}};
}

QIR_INLINE struct column weights_at(const struct block *b, size_t group) {
  struct column w;
  UNROLL for (int i = 0; i < 4; ++i) w.v[i] = vld1q_s8(b->weights + group * GROUP + 16 * i);
  return w;
}

QIR_INLINE struct sums opening(const struct block *b) {
  struct sums sum;
  UNROLL for (int i = 0; i < 4; ++i) sum.v[i] = vld1q_s32(b->bias + 4 * i);
  return sum;
}

QIR_INLINE void add(struct sums *sum, const struct column *x, const struct column *w) {
  UNROLL for (int i = 0; i < 4; ++i) sum->v[i] = vdotq_s32(sum->v[i], x->v[i], w->v[i]);
}

QIR_INLINE void store(const struct block *b, size_t ox, const struct sums *sum) {
  const size_t at = ox * b->run->channels + b->c;
  float32x4_t real[4];
  qir_arm_scale(sum->v, b->multiplier, real);
  if (b->run->to_float)
    qir_arm_store_f32((float *)b->run->y + at, real, b->left);
  else
    qir_arm_store((uint8_t *)b->run->y + at, qir_arm_encode(real, &b->code), b->left);
}

/* ---- windows of any shape ---- */

static NOINLINE void any_window(const struct block *b, size_t ox) {
  const size_t at = ox * b->run->step;
  struct sums sum = opening(b);
  for (size_t g = 0; g < b->run->groups; ++g) {
    const size_t t = g * LANES;
    const struct column x =
        interleave(load(b, t, at), load(b, t + 1, at), load(b, t + 2, at), load(b, t + 3, at));
    const struct column w = weights_at(b, g);
    add(&sum, &x, &w);
  }
  store(b, ox, &sum);
}

/* Eight sums of two products, each of which fits 16 bits. */
QIR_INLINE int16x8_t pair(uint8x8_t x0, int8x8_t w0, uint8x8_t x1, int8x8_t w1) {
  return vqaddq_s16(vmulq_s16(vreinterpretq_s16_u16(vmovl_u8(x0)), vmovl_s8(w0)),
                    vmulq_s16(vreinterpretq_s16_u16(vmovl_u8(x1)), vmovl_s8(w1)));
}

/* The same where the first two products of a group, and the last two, saturate in 16 bits. */
static NOINLINE void window_of_pairs(const struct block *b, size_t ox) {
  const size_t at = ox * b->run->step;
  struct sums sum = opening(b);
  for (size_t g = 0; g < b->run->groups; ++g) {
    const int8x16x4_t w = vld4q_s8(b->weights + g * GROUP);
    UNROLL for (int i = 0; i < LANES; i += 2) {
      const uint8x16_t x0 = load(b, g * LANES + (size_t)i, at);
      const uint8x16_t x1 = load(b, g * LANES + (size_t)i + 1, at);
      const int8x16_t w0 = w.val[i], w1 = w.val[i + 1];
      const int16x8_t low =
          pair(vget_low_u8(x0), vget_low_s8(w0), vget_low_u8(x1), vget_low_s8(w1));
      const int16x8_t high =
          pair(vget_high_u8(x0), vget_high_s8(w0), vget_high_u8(x1), vget_high_s8(w1));
      sum.v[0] = vaddw_s16(sum.v[0], vget_low_s16(low));
      sum.v[1] = vaddw_high_s16(sum.v[1], low);
      sum.v[2] = vaddw_s16(sum.v[2], vget_low_s16(high));
      sum.v[3] = vaddw_high_s16(sum.v[3], high);
    }
  }
  store(b, ox, &sum);
}

/* ---- windows that slide ---- */

/* Line `tap` of column k, of which the columns of padding before x are the first. */
QIR_INLINE uint8x16_t line_at(const struct block *b, size_t tap, size_t k) {
  const size_t ix = k - b->run->before; /* wraps before x: then it is not below its line */
  const uint8_t *from =
      ix < b->run->line ? b->run->taps[tap] + ix * b->run->channels : b->run->blank;
  return veorq_u8(qir_arm_load(from + b->c, b->left), b->flip);
}

/* Adds the products of lines `group` * 4 and on of column k to the sums of all pixels that see it:
 * of pixel i it is column `last` - i * stride of the window. */
QIR_INLINE void add_lines(const struct block *b, size_t k, int window, int stride, int last,
                          int group, struct sums *sum) {
  const int groups = (window + LANES - 1) / LANES;
  const uint8x16_t zero = vdupq_n_u8(0);
  uint8x16_t line[LANES];
  UNROLL for (int i = 0; i < LANES; ++i) {
    const int tap = group * LANES + i;
    line[i] = tap < window ? line_at(b, (size_t)tap, k) : zero;
  }
  const struct column x = interleave(line[0], line[1], line[2], line[3]);
  UNROLL for (int i = 0; last - i * stride >= 0; ++i) {
    const struct column w = weights_at(b, (size_t)((last - i * stride) * groups + group));
    add(&sum[i], &x, &w);
  }
}

/*
 * A square window that moves by one or two: a column of the input is in the windows of some pixels,
 * so it is interleaved once for all of them. Each turn takes in the last columns of a pixel. Sums
 * move up by one with each; those of pixels before the first are never kept.
 */
QIR_INLINE void slide(const struct block *b, int window, int stride) {
  const size_t open = (size_t)((window + stride - 1) / stride), width = b->run->width;
  struct sums sum[5];
  UNROLL for (size_t i = 0; i < open; ++i) sum[i] = opening(b);
  for (size_t n = 0; n < width + open - 1; ++n) {
    const size_t ox = n - (open - 1); /* wraps before the first */
    UNROLL for (int i = window - stride; i < window; ++i) {
      const size_t k = ox * (size_t)stride + (size_t)i;
      add_lines(b, k, window, stride, i, 0, sum);
      if (window > LANES) add_lines(b, k, window, stride, i, 1, sum);
    }
    if (n + 1 >= open) store(b, ox, &sum[0]);
    UNROLL for (size_t i = 0; i + 1 < open; ++i) sum[i] = sum[i + 1];
    sum[open - 1] = opening(b);
  }
}

#define SLIDE(stride, window)                                             \
  static NOINLINE void slide_##stride##x##window(const struct block *b) { \
    slide(b, window, stride);                                             \
  }
SLIDE(1, 3)
SLIDE(1, 5)
SLIDE(2, 3)
SLIDE(2, 5)

static void all_windows(const struct block *b) {
  const struct qir_depthwise_run *run = b->run;
  if (run->slides && run->size == 3) {
    if (run->slides == 1)
      slide_1x3(b);
    else
      slide_2x3(b);
  } else if (run->slides) {
    if (run->slides == 1)
      slide_1x5(b);
    else
      slide_2x5(b);
  } else {
    for (size_t ox = 0; ox < run->width; ++ox)
      if (run->pairs)
        window_of_pairs(b, ox);
      else
        any_window(b, ox);
  }
}

void qir_depthwise_neondot(const struct qir_depthwise_run *run) {
  for (size_t c = 0; c < run->channels; c += BLOCK) {
    const struct block b = {
        .run = run,
        .c = c,
        .left = qir_depthwise_left(run, c),
        .flip = vdupq_n_u8(run->pairs ? run->x_flip : run->x_flip ^ 0x80),
        .weights = (const int8_t *)run->weights + c * run->groups * LANES,
        .bias = run->bias + c,
        .multiplier = run->multiplier + c,
        .code = qir_arm_load_code(&run->code),
    };
    all_windows(&b);
  }
}

QIR_TARGET_END
#endif
