#define QIR_NAME(op) qir_pooling_##op##_scalar
#include "body.h"
