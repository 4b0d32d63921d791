#include "resize.h"

#define QIR_RESIZE_NAME qir_resize_scalar
#include "body.h"
