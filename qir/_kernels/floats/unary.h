#ifndef QIR_FLOAT_UNARY_H
#define QIR_FLOAT_UNARY_H

/*
 * Functions of each float32 by itself, computed in f64 and rounded once, and what windows and rows
 * of them make. tanh and gelu are within 2^-34, so a result may be one unit of the last place of
 * f32 from the C library's; erf is computed in f32 within one unit; sigmoid, silu and hard_swish
 * are computed in f32 with the errors of their sums and products added back: within one unit,
 * rarely two.
 *
 * A mean adds in sixteen lanes of f64, as rows.h says. In a maximum NaN wins, padding never does.
 */

#include "isa.h"
#include "step.h"

/* In the order of the functions of a kernel; bound is min(max(x, a), b), and NaN stays. */
enum qir_unary_op {
  QIR_BOUND,
  QIR_SIGMOID,
  QIR_TANH,
  QIR_ERF,
  QIR_GELU,
  QIR_SILU,
  QIR_SQRT,
  QIR_SQUARE,
  QIR_HARD_SIGMOID,
  QIR_HARD_SWISH,
  QIR_LEAKY_RELU,
  QIR_ABS,
  QIR_UNARY_OPS
};

enum { QIR_MEANS = 16 /* channels whose means are taken at a time */ };

struct qir_unary {
  double a, b;
};

/* y = (x - mean) * slope + shift, in f64 */
struct qir_channel {
  double mean, slope, shift;
};

/* Results before they are rounded to f32, where f32 holds them: within 2^-34 of their value, those
 * of erf and gelu within 2^-41, of tanh 2^-36. */
typedef void (*qir_near_fn)(const struct qir_unary *how, const float *x, double *y, size_t n);
typedef void (*qir_unary_fn)(const struct qir_unary *how, const float *x, float *y, size_t n);

struct qir_unary_kernel {
  const char *name;
  uint32_t isa;
  qir_unary_fn ops[QIR_UNARY_OPS];
  qir_near_fn near_tanh, near_erf, near_gelu, near_exp, near_elu, near_selu, near_softplus;
  qir_near_fn near_log_sigmoid, near_sigmoid, near_silu, near_mish, near_gelu_tanh;
  /* y = found, rounded; `open` where what is within `room` of it has more than one float. */
  int (*settle)(const double *found, double room, float *y, uint8_t *open, size_t n);
  void (*most)(const float *x, float *y, size_t n); /* y = max(x, y) */
  double (*sum)(const float *x, size_t n);
  void (*normalize)(const struct qir_channel *how, const float *x, float *y, size_t n);
  void (*collect)(const float *x, double *y, size_t n); /* y += x */
  void (*scale)(const float *x, float *y, size_t n);    /* y *= x */
  void (*plus)(const float *x, float *y, size_t n);     /* y += x */
  void (*keep)(float low, float high, float *y, size_t n);
  /* y[c] = the mean of x[c + i * step] over the pixels i, for n <= QIR_MEANS channels */
  void (*means)(const float *x, size_t pixels, size_t step, size_t n, float *y);
};

/* Kernels of this build, best first; the last is scalar and always runs. */
extern const struct qir_unary_kernel qir_unary_kernels[];
extern const size_t qir_unary_kernel_count;

struct qir_float_window {
  size_t planes, h, w, oh, ow, kh, kw, sh, sw, dh, dw, pt, pl;
};

/* Each makes a step over buffers of f32; 0 if there is no memory. */
int qir_float_unary_make(uint32_t isa, enum qir_unary_op op, const struct qir_unary *how,
                         size_t size, int x, int y, struct qir_step *step);
int qir_float_max_pool_make(uint32_t isa, const struct qir_float_window *window, int x, int y,
                            struct qir_step *step);
/* The mean of each window, taps added in order in f64; `count_pad` counts padding, as zeros. */
int qir_float_avg_pool_make(uint32_t isa, const struct qir_float_window *window, size_t pb,
                            size_t pr, int count_pad, int x, int y, struct qir_step *step);
/* `channels` in turn, of `inner` numbers each; these are copied. */
int qir_float_batch_norm_make(uint32_t isa, size_t outer, size_t channels, size_t inner,
                              const struct qir_channel *how, int x, int y, struct qir_step *step);
/* y[i] = the mean of x[i * width] .. x[i * width + width - 1] */
int qir_float_mean_make(uint32_t isa, size_t rows, size_t width, int x, int y,
                        struct qir_step *step);

#endif
