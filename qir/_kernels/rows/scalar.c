#define QIR_NAME(op) qir_rows_##op##_scalar
#include "body.h"
