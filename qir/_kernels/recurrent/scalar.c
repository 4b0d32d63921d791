#define QIR_NAME(op) qir_recurrent_##op##_scalar
#include "body.h"
