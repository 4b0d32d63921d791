#include "gemm.h"

#include <math.h>
#include <string.h>

#define QIR_GEMM_KERNEL(name, isa, nr, nv, kr, widened) {#name, isa, name, nr, nv, kr, widened},
const struct qir_gemm_kernel qir_gemm_kernels[] = {
#include "kernels.inc"
};
#undef QIR_GEMM_KERNEL
const size_t qir_gemm_kernel_count = sizeof qir_gemm_kernels / sizeof *qir_gemm_kernels;

static size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

size_t qir_gemm_width(const struct qir_gemm_kernel *kernel, size_t n, size_t j) {
  const size_t full = kernel->nr * kernel->nv;
  return n - j < full ? round_up(n - j, kernel->nr) : full;
}

size_t qir_gemm_packed_size(const struct qir_gemm_kernel *kernel, size_t n, size_t k) {
  const size_t columns = round_up(n, kernel->nr), values = columns * round_up(k, kernel->kr);
  return round_up(values * (kernel->widened ? 2 : 1), 64) +
         2 * round_up(columns * sizeof(int32_t), 64);
}

/*
 * Where column j of a panel is stored. Vectors of 32-bit sums are narrowed to bytes by instructions
 * that work in 128-bit lanes, so in a panel of several vectors of sixteen, lane l of vector v holds
 * the four columns from (l * vectors + v) * 4 on, and the bytes come out in order.
 */
size_t qir_gemm_place(size_t width, int to_float, size_t j) {
  const size_t vectors = width / 16;
  if (vectors < 2 || to_float) return j;
  return j / 4 % vectors * 16 + j / 4 / vectors * 4 + j % 4;
}

/*
 * Packs the columns of one panel: `kr` values of a column at a time, for all taps before the next,
 * so that what is read lies together. Calls with constants become loops of their own.
 */
static inline __attribute__((always_inline)) void pack_panel(const struct qir_gemm_weights *w,
                                                             size_t first, size_t width,
                                                             size_t columns, int to_float,
                                                             size_t kr, int widened, char *panel,
                                                             uint32_t *sums) {
  const size_t joined = w->joined, depth = w->depth, group = round_up(joined * depth, kr);
  for (size_t p = 0; p < depth; p += kr) {
    const size_t some = depth - p < kr ? depth - p : kr;
    for (size_t j = 0; j < columns; ++j) {
      const int8_t *from = w->data + (first + j) * w->column + p * w->value;
      const size_t to = qir_gemm_place(width, to_float, j) * kr;
      uint32_t sum = 0;
      for (size_t t = 0; t < w->taps; ++t, from += w->tap) {
        const size_t at = t / joined * group + t % joined * depth + p;
        for (size_t i = 0; i < some; ++i) {
          const int8_t value = from[i * w->value];
          const size_t place = (at + i) / kr * width * kr + to + (at + i) % kr;
          if (widened)
            ((int16_t *)panel)[place] = value;
          else
            ((int8_t *)panel)[place] = value;
          sum += (uint32_t)(int32_t)value;
        }
      }
      sums[j] += sum;
    }
  }
}

/*
 * The same for whole groups of four bytes, each written as one word. Some words of a column are
 * packed before the next column, so that the lines that are written stay in the first cache.
 */
static inline __attribute__((always_inline)) void pack_words(const struct qir_gemm_weights *w,
                                                             size_t first, size_t width,
                                                             size_t columns, int to_float,
                                                             size_t value, size_t taps, char *panel,
                                                             uint32_t *sums) {
  enum { SOME = 64 /* words */ };
  const size_t words = w->depth / 4;
  for (size_t q = 0; q < words; q += SOME) {
    const size_t some = words - q < SOME ? words - q : SOME;
    for (size_t j = 0; j < columns; ++j) {
      const int8_t *from = w->data + (first + j) * w->column + q * 4 * value;
      char *to = panel + (q * width + qir_gemm_place(width, to_float, j)) * 4;
      int32_t sum = 0;
      for (size_t t = 0; t < taps; ++t, from += w->tap, to += words * width * 4)
        for (size_t i = 0; i < some; ++i) {
          const int8_t *at = from + i * 4 * value;
          const int8_t four[4] = {at[0], at[value], at[2 * value], at[3 * value]};
          memcpy(to + i * width * 4, four, 4);
          sum += four[0] + four[1] + four[2] + four[3];
        }
      sums[j] += (uint32_t)sum;
    }
  }
}

void qir_gemm_pack(const struct qir_gemm_kernel *kernel, const struct qir_gemm_weights *weights,
                   const int32_t *bias, int32_t x_zero, const float *multiplier,
                   size_t multiplier_count, int to_float, void *memory,
                   struct qir_gemm_packed *packed) {
  enum { MOST = 64 /* columns of a panel */ };
  const size_t kr = kernel->kr, n = weights->n, columns = round_up(n, kernel->nr);
  const size_t bytes = kernel->widened ? 2 : 1, panel = kernel->nr * kernel->nv;
  const uint32_t zero = (uint32_t)(x_zero - qir_isa_centre(kernel->isa));
  packed->n = n;
  packed->k = weights->taps / weights->joined * round_up(weights->joined * weights->depth, kr);
  packed->panels = memory;
  packed->bias = (int32_t *)(packed->panels + round_up(columns * packed->k * bytes, 64));
  packed->multiplier = (float *)((char *)packed->bias + round_up(columns * sizeof(int32_t), 64));
  packed->below_one = 1;
  for (size_t j = 0; j < multiplier_count; ++j) packed->below_one &= fabsf(multiplier[j]) < 1;
  for (size_t first = 0; first < n; first += panel) {
    const size_t width = qir_gemm_width(kernel, n, first);
    const size_t some = n - first < width ? n - first : width;
    char *to = packed->panels + first * packed->k * bytes;
    uint32_t sums[MOST] = {0};
    if (kr == 4 && !kernel->widened && weights->depth % 4 == 0)
      if (weights->value == 1 && weights->taps == 1)
        pack_words(weights, first, width, some, to_float, 1, 1, to, sums);
      else
        pack_words(weights, first, width, some, to_float, weights->value, weights->taps, to, sums);
    else if (kr == 4 && !kernel->widened)
      pack_panel(weights, first, width, some, to_float, 4, 0, to, sums);
    else if (kr == 2)
      pack_panel(weights, first, width, some, to_float, 2, 1, to, sums);
    else
      pack_panel(weights, first, width, some, to_float, kr, kernel->widened, to, sums);
    for (size_t j = 0; j < some; ++j) {
      const size_t at = first + qir_gemm_place(width, to_float, j);
      const uint32_t start = bias ? (uint32_t)bias[first + j] : 0;
      packed->bias[at] = (int32_t)(start - zero * sums[j]);
      packed->multiplier[at] = multiplier[multiplier_count == 1 ? 0 : first + j];
    }
  }
}

void qir_gemm_point(const struct qir_gemm_kernel *kernel, const struct qir_gemm_packed *packed,
                    size_t j, struct qir_gemm_block *block) {
  const size_t bytes = kernel->widened ? 2 : 1;
  block->panel = packed->panels + j * packed->k * bytes;
  block->bias = packed->bias + j;
  block->multiplier = packed->multiplier + j;
  block->below_one = packed->below_one;
  block->width = qir_gemm_width(kernel, packed->n, j);
  block->columns = packed->n - j < block->width ? packed->n - j : block->width;
#if defined(QIR_FAULT_TAIL) /* never in a build to use: tests/kernels/test_faults.py plants it */
  if (block->columns < block->width) --block->columns;
#endif
}
