#include "sgemm.h"

#define QIR_SGEMM_KERNEL(name, isa, nr, width) \
  {"qir_sgemm_" #name, isa, qir_sgemm_##name, qir_unfold_##name, qir_plane_##name, nr, width},
const struct qir_sgemm_kernel qir_sgemm_kernels[] = {
#include "kernels.inc"
};
#undef QIR_SGEMM_KERNEL
const size_t qir_sgemm_kernel_count = sizeof qir_sgemm_kernels / sizeof *qir_sgemm_kernels;
