#define QIR_EPILOGUE_NAME qir_epilogue_scalar
#include "body.h"
