#define QIR_NAME(op) qir_wide_##op##_scalar
#define QIR_PART 4
#include "body.h"
