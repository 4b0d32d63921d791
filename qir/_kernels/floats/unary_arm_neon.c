#include "unary.h"

#if defined(QIR_ARM64)
#include <math.h>

#define QIR_NAME(op) qir_unary_##op##_neon
#include "body.h"
#endif
