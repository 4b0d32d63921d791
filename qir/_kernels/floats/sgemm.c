#include "sgemm.h"

#define QIR_SGEMM_KERNEL(name, isa, nr, width) \
  {"qir_sgemm_" #name,                         \
   isa,                                        \
   qir_sgemm_##name,                           \
   qir_unfold_##name,                          \
   qir_plane_##name,                           \
   qir_lines_##name,                           \
   nr,                                         \
   width},
const struct qir_sgemm_kernel qir_sgemm_kernels[] = {
#include "kernels.inc"
};
#undef QIR_SGEMM_KERNEL
const size_t qir_sgemm_kernel_count = sizeof qir_sgemm_kernels / sizeof *qir_sgemm_kernels;

/* By squares: what is read and what is written stays in the first cache. */
void qir_pack_weights(const struct qir_panels *panels, const float *weight, size_t k, float *to) {
  enum { RUN = 16 };
  for (size_t i = 0; i < panels->count; ++i) {
    const struct qir_panel at = qir_panel_at(panels, i);
    float *panel = to + at.first * k;
    for (size_t first = 0; first < k; first += RUN) {
      const size_t end = k - first < RUN ? k : first + RUN;
      for (size_t j = 0; j < at.columns; ++j)
        for (size_t p = first; p < end; ++p)
          panel[p * at.width + j] = weight[(at.first + j) * k + p];
    }
  }
}
