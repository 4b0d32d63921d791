#define _GNU_SOURCE /* sched_getcpu, cpu_set_t */
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

enum { SPINS = 4000 /* some 100 us */, LINE = 64 /* bytes that cores hand each other at once */ };

/*
 * A thread of the pool. A call is posted to it, and it claims the call: until then the caller may
 * take the call back. Each transition is one atomic operation on a cache line of its own, so no
 * lock is held while steps follow each other; only who sleeps takes it.
 */
enum state { IDLE, ASLEEP, POSTED, RUNNING, AWAITED /* running, and the caller sleeps */ };

struct worker {
  _Alignas(LINE) atomic_int state;
  pthread_cond_t posted;
};

/* Tasks that one thread takes first. */
struct range {
  _Alignas(LINE) atomic_long next;
  long end;
};

static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER; /* held for the length of one call */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held by who goes to sleep or wakes */
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER;
static struct worker workers[QIR_POOL_MAX_THREADS]; /* [0] is the caller, and unused */
static int started;                                 /* threads that exist, the caller not counted */

/* The current call: no worker that reads it runs while it is written. */
static struct range ranges[QIR_POOL_MAX_THREADS];
static qir_task_fn job;
static void *job_context;
static int sharing;     /* threads, and ranges */
static int caller_core; /* where the caller was when it posted the call; -1: unknown */

static void pause_core(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static int core(void) {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

/* Leaves the caller's core. A scheduler likes to wake a thread where its waker runs; both would
   take turns there for milliseconds, until the load is balanced. */
static void step_aside(int from) {
#if defined(__linux__)
  cpu_set_t allowed, others;
  if (from < 0 || core() != from || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  others = allowed;
  CPU_CLR(from, &others);
  if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0)
    sched_setaffinity(0, sizeof allowed, &allowed);
#else
  (void)from;
#endif
}

/* The thread's own tasks in order, then what others have left. */
static void drain(int worker) {
  for (int i = 0; i < sharing; ++i) {
    struct range *range = &ranges[(worker + i) % sharing];
    if (atomic_load(&range->next) >= range->end) continue;
    for (long task; (task = atomic_fetch_add(&range->next, 1)) < range->end;)
      job(job_context, task, worker);
  }
}

static int change(struct worker *worker, int from, int to) {
  return atomic_compare_exchange_strong(&worker->state, &from, to);
}

/* Claims the next call; returns whether the thread slept before. */
static int await_call(struct worker *self) {
  for (int i = 0; i < SPINS; ++i, pause_core())
    if (atomic_load(&self->state) == POSTED && change(self, POSTED, RUNNING)) return 0;
  int slept = 0;
  pthread_mutex_lock(&lock);
  while (!change(self, POSTED, RUNNING)) {
    if (!change(self, IDLE, ASLEEP)) continue; /* just posted */
    slept = 1;
    while (atomic_load(&self->state) == ASLEEP) pthread_cond_wait(&self->posted, &lock);
  }
  pthread_mutex_unlock(&lock);
  return slept;
}

static void *work(void *number) {
  struct worker *self = number;
  for (;;) {
    if (await_call(self)) step_aside(caller_core);
    drain((int)(self - workers));
    if (atomic_exchange(&self->state, IDLE) != AWAITED) continue;
    pthread_mutex_lock(&lock);
    pthread_cond_signal(&finished);
    pthread_mutex_unlock(&lock);
  }
  return NULL;
}

static void forget(void) { /* in a forked child: its parent's threads are not here */
  const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
  const pthread_cond_t quiet = PTHREAD_COND_INITIALIZER;
  busy = lock = fresh;
  finished = quiet;
  started = 0;
}

static void start(int threads) {
  const pthread_cond_t quiet = PTHREAD_COND_INITIALIZER;
  static int watched;
  if (!watched) watched = pthread_atfork(NULL, NULL, forget) == 0;
  if (started >= threads) return;
  sigset_t all, before; /* signals are for the caller's threads */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (pthread_t thread; started < threads; ++started) {
    struct worker *next = &workers[started + 1];
    next->posted = quiet;
    atomic_store(&next->state, IDLE);
    if (pthread_create(&thread, NULL, work, next) != 0) break;
    pthread_detach(thread);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void post(struct worker *worker) {
  if (atomic_exchange(&worker->state, POSTED) != ASLEEP) return;
  pthread_mutex_lock(&lock);
  pthread_cond_signal(&worker->posted);
  pthread_mutex_unlock(&lock);
}

/* Takes the call back from a thread that has not come, or waits until it has run its tasks. */
static void part(struct worker *worker) {
  if (change(worker, POSTED, IDLE)) return;
  for (int i = 0; i < SPINS && atomic_load(&worker->state) == RUNNING; ++i) pause_core();
  if (!change(worker, RUNNING, AWAITED)) return;
  pthread_mutex_lock(&lock);
  while (atomic_load(&worker->state) == AWAITED) pthread_cond_wait(&finished, &lock);
  pthread_mutex_unlock(&lock);
}

void qir_pool_run(long tasks, int threads, qir_task_fn task, void *context) {
  if (threads > QIR_POOL_MAX_THREADS) threads = QIR_POOL_MAX_THREADS;
  if (threads > tasks) threads = (int)tasks;
  if (threads <= 1 || pthread_mutex_trylock(&busy) != 0) {
    for (long i = 0; i < tasks; ++i) task(context, i, 0);
    return;
  }
  start(threads - 1);
  sharing = threads - 1 < started ? threads : started + 1;
  job = task;
  job_context = context;
  caller_core = core();
  for (int i = 0; i < sharing; ++i) {
    atomic_store_explicit(&ranges[i].next, tasks * i / sharing, memory_order_relaxed);
    ranges[i].end = tasks * (i + 1) / sharing;
  }
  for (int i = 1; i < sharing; ++i) post(&workers[i]);
  drain(0);
  for (int i = 1; i < sharing; ++i) part(&workers[i]);
  pthread_mutex_unlock(&busy);
}
