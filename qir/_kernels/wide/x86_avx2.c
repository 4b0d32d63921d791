#include "wide.h"

#if defined(QIR_X86)

QIR_TARGET_BEGIN("avx2,fma")

#define QIR_NAME(op) qir_wide_##op##_avx2
#define QIR_PART 8
#include "body.h"

QIR_TARGET_END
#endif
