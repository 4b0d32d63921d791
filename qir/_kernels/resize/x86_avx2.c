#include "resize.h"

#if defined(QIR_X86)
#include <math.h>

QIR_TARGET_BEGIN("avx2,fma")

#define QIR_RESIZE_NAME qir_resize_avx2
#include "body.h"

QIR_TARGET_END
#endif
