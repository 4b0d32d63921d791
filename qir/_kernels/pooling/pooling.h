#ifndef QIR_POOLING_H
#define QIR_POOLING_H

/*
 * Windows over the pixels of x, NHWC; s, z, so, zo are the scales and zero points of x and y.
 *
 *   max      y = the largest value; padding never wins, and an empty window gives the lowest
 *   average  sum = f32 sum of f32((x - z) * s) over the elements inside of x, row by row;
 *            y = clamp(rne(sum / count / so + zo)), count = elements inside, or the whole window
 *   global   y = clamp(rne(f32(sum of x - z, exact) * f32(s / f32(so * pixels))) + zo)
 *
 *   mean     y = f32(sum of f32((x - z) * s), in f64, / count); of up to 2^20 values it is exact,
 *            for each number is a multiple of the same power of two and of 32 bits. Or the sum
 *            of table[x], where whoever gives the table has seen that it is exact, too
 *
 * The average adds in the order of the window, has its zero point inside of the rounding and gives
 * the lowest quantized value where the rounded number does not fit 32 bits, as onnxruntime does.
 * All else is f32, one rounding an operation.
 */

#include "isa.h"
#include "requant.h"
#include "step.h"

struct qir_window {
  size_t n, h, w, c;
  size_t oh, ow;
  size_t kh, kw, sh, sw, dh, dw;
  size_t pt, pl;
};

struct qir_average {
  float x_scale, y_scale;
  int32_t x_zero;
  uint8_t x_flip;
  struct qir_code code;
  int count_pad;
};

struct qir_mean {
  float x_scale;
  int32_t x_zero;
  uint8_t x_flip, tabled; /* tabled: the numbers are table[x], and scale and zero are not used */
  float table[256];
};

/* The elements of one window: `count` rows of c bytes. */
struct qir_pooling_rows {
  const uint8_t *const *rows;
  size_t count, c;
};

struct qir_pooling_kernel {
  const char *name;
  uint32_t isa;
  void (*max)(const struct qir_pooling_rows *x, uint8_t flip, uint8_t *y);
  void (*average)(const struct qir_pooling_rows *x, float count, const struct qir_average *how,
                  uint8_t *y);
  void (*global)(const uint8_t *x, size_t pixels, size_t c, const struct qir_average *how,
                 uint8_t *y);
  void (*mean)(const uint8_t *x, size_t rows, size_t inner, const struct qir_mean *how, float *y);
};

/* Kernels of this build, best first; the last is scalar and always runs. */
extern const struct qir_pooling_kernel qir_pooling_kernels[];
extern const size_t qir_pooling_kernel_count;

/* Each makes a step; 0 if there is no memory. x and y are buffers. */
int qir_max_pool_make(uint32_t isa, const struct qir_window *window, uint8_t flip, int x, int y,
                      struct qir_step *step);
int qir_average_pool_make(uint32_t isa, const struct qir_window *window,
                          const struct qir_average *how, int x, int y, struct qir_step *step);
int qir_global_average_make(uint32_t isa, size_t n, size_t pixels, size_t c,
                            const struct qir_average *how, int x, int y, struct qir_step *step);
/* y[o, i] = the mean over r of x[o, r, i]. */
int qir_mean_make(uint32_t isa, size_t outer, size_t rows, size_t inner, const struct qir_mean *how,
                  int x, int y, struct qir_step *step);

#endif
