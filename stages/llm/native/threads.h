/* The threads of a step and how they share its work.
 *
 * A step is a sequence of phases, a phase a number of units that any thread may claim. Who finds
 * none left waits until all are done. A thread that the system has suspended holds up a phase only
 * with a unit that it has claimed; otherwise the others do its part, and when it comes back it
 * passes over the phases that are over. */

#pragma once

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS = 16, SPINS = 2000 };

typedef struct {
    _Alignas(64) atomic_int claimed;
    atomic_int done;
} Phase;

typedef struct Pool Pool;

typedef struct {
    Pool *pool;
    int phase; /* the current one's number */
} Worker;

struct Pool {
    void (*work)(void *job, Worker *worker);
    void *job;
    Phase *phases;
    int n_phases, n_workers, wanted; /* of the workers, those that take part in this step */
    atomic_int n_busy;
    unsigned generation;
    int closing;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t threads[MAX_THREADS];
};

static inline void pause_for(int *n_spins)
{
    if (++*n_spins < SPINS)
        _mm_pause();
    else
        sched_yield();
}

/* The next unit of the current phase; -1 once all `n` of them are done. */
static inline int claim(Worker *worker, int n)
{
    Phase *phase = &worker->pool->phases[worker->phase];
    int unit = atomic_fetch_add_explicit(&phase->claimed, 1, memory_order_relaxed);
    if (unit < n)
        return unit;
    for (int spins = 0; atomic_load_explicit(&phase->done, memory_order_acquire) < n;)
        pause_for(&spins);
    worker->phase++;
    return -1;
}

static inline void finish(Worker *worker)
{
    Phase *phase = &worker->pool->phases[worker->phase];
    atomic_fetch_add_explicit(&phase->done, 1, memory_order_release);
}

/* for each unit of a phase of `n` */
#define EACH_UNIT(worker, unit, n) \
    for (int unit; (unit = claim(worker, n)) >= 0; finish(worker))

typedef struct {
    Pool *pool;
    int number;
} Entry;

static void *serve(void *argument)
{
    Entry entry = *(Entry *)argument;
    Pool *pool = entry.pool;
    free(argument);
    pthread_mutex_lock(&pool->lock);
    for (unsigned seen = 0;;) {
        while (!pool->closing && pool->generation == seen)
            pthread_cond_wait(&pool->wake, &pool->lock);
        if (pool->closing)
            break;
        seen = pool->generation;
        if (entry.number >= pool->wanted || !pool->job)
            continue;
        atomic_fetch_add(&pool->n_busy, 1);
        Worker worker = {pool, 0};
        void *job = pool->job;
        pthread_mutex_unlock(&pool->lock);
        pool->work(job, &worker);
        atomic_fetch_sub(&pool->n_busy, 1);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static Pool *pool_open(void (*work)(void *, Worker *))
{
    Pool *pool = calloc(1, sizeof(Pool));
    if (!pool)
        return NULL;
    pool->work = work;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    return pool;
}

/* Have enough threads (as many as the system gives) and phases. 0 without memory. */
static int pool_fit(Pool *pool, int n_threads, int n_phases)
{
    while (pool->n_workers < n_threads - 1 && pool->n_workers < MAX_THREADS) {
        Entry *entry = malloc(sizeof(Entry));
        if (!entry)
            return 0;
        *entry = (Entry){pool, pool->n_workers};
        if (pthread_create(&pool->threads[pool->n_workers], NULL, serve, entry)) {
            free(entry);
            break;
        }
        pool->n_workers++;
    }
    if (pool->phases && pool->n_phases >= n_phases)
        return 1;
    free(pool->phases);
    pool->phases = aligned_alloc(64, sizeof(Phase) * (size_t)n_phases);
    pool->n_phases = pool->phases ? n_phases : 0;
    return pool->phases != NULL;
}

/* Do `job` with `n_threads`, the calling one included; its phases are at most `n_phases`. */
static int pool_run(Pool *pool, void *job, int n_threads, int n_phases)
{
    for (int spins = 0; atomic_load(&pool->n_busy);) /* with the last job's empty phases */
        pause_for(&spins);
    if (!pool_fit(pool, n_threads, n_phases))
        return 0;
    memset(pool->phases, 0, sizeof(Phase) * (size_t)n_phases);
    if (n_threads > 1) {
        pthread_mutex_lock(&pool->lock);
        pool->job = job;
        pool->wanted = n_threads - 1;
        pool->generation++;
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
    }
    Worker worker = {pool, 0};
    pool->work(job, &worker);
    if (n_threads > 1) { /* who wakes up only now has nothing to do */
        pthread_mutex_lock(&pool->lock);
        pool->job = NULL;
        pthread_mutex_unlock(&pool->lock);
        for (int spins = 0; atomic_load(&pool->n_busy);)
            pause_for(&spins);
    }
    return 1;
}

static void pool_close(Pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->closing = 1;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int n = 0; n < pool->n_workers; n++)
        pthread_join(pool->threads[n], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool->phases);
    free(pool);
}
