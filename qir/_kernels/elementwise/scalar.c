#define QIR_NAME(op) qir_elementwise_##op##_scalar
#include "body.h"
