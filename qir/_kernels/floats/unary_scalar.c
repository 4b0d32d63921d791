#define QIR_NAME(op) qir_unary_##op##_scalar
#include "body.h"
