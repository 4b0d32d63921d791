#include "recurrent.h"

#include <string.h>

#define QIR_RECURRENT_KERNEL(name, isa)                                                           \
  void qir_recurrent_add_##name(const double *, size_t, const float *, size_t, size_t, double *); \
  void qir_recurrent_sigmoid_##name(double *, size_t);                                            \
  void qir_recurrent_tanh_##name(double *, size_t);
#include "kernels.inc"
#undef QIR_RECURRENT_KERNEL

#define QIR_RECURRENT_KERNEL(name, isa)                                                 \
  {"qir_recurrent_" #name, isa, qir_recurrent_add_##name, qir_recurrent_sigmoid_##name, \
   qir_recurrent_tanh_##name},
const struct qir_recurrent_kernel qir_recurrent_kernels[] = {
#include "kernels.inc"
};
#undef QIR_RECURRENT_KERNEL

struct recurrent {
  const struct qir_recurrent_kernel *kernel;
  struct qir_recurrent r;
  size_t rows; /* gates * hidden */
  int peeps;
  float numbers[]; /* for each direction: w and r transposed, bias of w, bias of r, peepholes */
};

static size_t numbers_of(const struct recurrent *v) {
  return v->rows * (v->r.width + v->r.hidden + 2) + (v->peeps ? 3 * v->r.hidden : 0);
}

/* What a gate sees of the state. */
static void peep(const float *by, const double *c, size_t n, double *sums) {
  for (size_t j = 0; j < n; ++j) sums[j] += (double)by[j] * c[j];
}

static void widen(const float *x, size_t n, double *y) {
  for (size_t i = 0; i < n; ++i) y[i] = (double)x[i];
}

static void narrow(const double *x, size_t n, float *y) {
  for (size_t i = 0; i < n; ++i) y[i] = (float)x[i];
}

/* Sums of all gates are there: makes h and c. `more` has room for one gate. */
static void lstm_step(const struct recurrent *v, const float *peepholes, double *sums, double *h,
                      double *c, double *more) {
  const size_t n = v->r.hidden;
  double *i = sums, *o = sums + n, *f = sums + 2 * n, *g = sums + 3 * n;
  if (v->peeps) {
    peep(peepholes, c, n, i);
    peep(peepholes + 2 * n, c, n, f);
  }
  v->kernel->sigmoid(i, n);
  v->kernel->sigmoid(f, n);
  v->kernel->tanh(g, n);
  for (size_t j = 0; j < n; ++j) more[j] = c[j] = f[j] * c[j] + i[j] * g[j];
  if (v->peeps) peep(peepholes + n, c, n, o);
  v->kernel->sigmoid(o, n);
  v->kernel->tanh(more, n);
  for (size_t j = 0; j < n; ++j) h[j] = o[j] * more[j];
}

/* Sums of z and r are there, and what x gives to the new state: makes h. */
static void gru_step(const struct recurrent *v, const float *r, const float *bias, double *sums,
                     double *h, double *more) {
  const size_t n = v->r.hidden;
  const double *z = sums, *reset = sums + n;
  double *fresh = sums + 2 * n, *scaled = more + n;
  v->kernel->sigmoid(sums, 2 * n);
  widen(bias + 2 * n, n, more);
  if (v->r.reset_after) {
    v->kernel->add(h, n, r + 2 * n, v->rows, n, more);
    for (size_t j = 0; j < n; ++j) fresh[j] += reset[j] * more[j];
  } else {
    for (size_t j = 0; j < n; ++j) scaled[j] = reset[j] * h[j];
    v->kernel->add(scaled, n, r + 2 * n, v->rows, n, more);
    for (size_t j = 0; j < n; ++j) fresh[j] += more[j];
  }
  v->kernel->tanh(fresh, n);
  for (size_t j = 0; j < n; ++j) h[j] = (1 - z[j]) * fresh[j] + z[j] * h[j];
}

/* Where a row of the state of a direction and a sequence is. */
static size_t state_at(const struct qir_recurrent *r, size_t way, size_t b) {
  return (r->batch_first ? b * r->ways + way : way * r->batch + b) * r->hidden;
}

/* A task is one direction of one sequence. */
static void run(const void *params, void *const *buffers, void *scratch, long task) {
  const struct recurrent *v = params;
  const struct qir_recurrent *r = &v->r;
  const size_t way = (size_t)task / r->batch, b = (size_t)task % r->batch, n = r->hidden;
  const float *w = v->numbers + way * numbers_of(v), *turned = w + v->rows * r->width;
  const float *bias = turned + v->rows * n, *later = bias + v->rows;
  const size_t at = state_at(r, way, b), steady = (r->gates == 4 ? 4 : 2) * n;
  double *sums = scratch, *h = sums + v->rows, *c = h + n, *more = c + n, *x = more + 2 * n;
  const int back = r->ways == 2 ? way == 1 : r->back;
  memset(h, 0, 2 * n * sizeof *h);
  if (r->h0 >= 0) widen((const float *)buffers[r->h0] + at, n, h);
  if (r->c0 >= 0) widen((const float *)buffers[r->c0] + at, n, c);
  for (size_t i = 0; i < r->steps; ++i) {
    const size_t t = back ? r->steps - 1 - i : i;
    const size_t row = r->batch_first ? b * r->steps + t : t * r->batch + b;
    const size_t to = r->batch_first ? row * r->ways + way : (t * r->ways + way) * r->batch + b;
    widen((const float *)buffers[r->x] + row * r->width, r->width, x);
    for (size_t j = 0; j < v->rows; ++j)
      sums[j] = (double)bias[j] + (j < steady ? (double)later[j] : 0);
    v->kernel->add(x, r->width, w, v->rows, v->rows, sums);
    v->kernel->add(h, n, turned, v->rows, steady, sums);
    if (r->gates == 4)
      lstm_step(v, later + v->rows, sums, h, c, more);
    else
      gru_step(v, turned, later, sums, h, more);
    narrow(h, n, (float *)buffers[r->y] + to * n);
  }
  narrow(h, n, (float *)buffers[r->h] + at);
  if (r->gates == 4) narrow(c, n, (float *)buffers[r->c] + at);
}

static void transpose(const float *x, size_t rows, size_t columns, float *y) {
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < columns; ++j) y[j * rows + i] = x[i * columns + j];
}

int qir_recurrent_make(uint32_t isa, const struct qir_recurrent *r, struct qir_step *step) {
  const size_t rows = (size_t)r->gates * r->hidden;
  const size_t all = rows * (r->width + r->hidden + 2) + (r->peephole ? 3 * r->hidden : 0);
  struct recurrent *v = qir_step_alloc(sizeof *v + r->ways * all * sizeof(float));
  if (!v) return 0;
  v->kernel = QIR_SELECT(qir_recurrent_kernels, isa);
  v->r = *r;
  v->rows = rows;
  v->peeps = r->peephole != NULL;
  for (size_t way = 0; way < r->ways; ++way) {
    float *to = v->numbers + way * all;
    transpose(r->w + way * rows * r->width, rows, r->width, to);
    to += rows * r->width;
    transpose(r->r + way * rows * r->hidden, rows, r->hidden, to);
    to += rows * r->hidden;
    memcpy(to, r->bias + 2 * way * rows, 2 * rows * sizeof(float));
    if (r->peephole)
      memcpy(to + 2 * rows, r->peephole + 3 * way * r->hidden, 3 * r->hidden * sizeof(float));
  }
  v->r.w = v->r.r = v->r.bias = v->r.peephole = NULL; /* the caller's */
  const size_t numbers = rows + 4 * r->hidden + r->width;
  *step = (struct qir_step){run, v, (long)(r->ways * r->batch),
                            qir_round_up(numbers * sizeof(double), 64)};
  return 1;
}
