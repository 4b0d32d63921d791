#include "sums.h"

#if defined(QIR_X86)
QIR_TARGET_BEGIN("avx2,fma")

#define QIR_SUMS_NAME qir_sums_avx2
#include "body.h"

QIR_TARGET_END
#endif
