/* Steps of a decoder (Llama, Qwen 2, Qwen 3, Gemma 3) on a CPU with AVX2, FMA and F16C.
 *
 * Compiled on the machine that runs it, see native_build.py; native_backend.py mirrors the structs.
 * The arithmetic is layer.py's. A row's result depends on nothing but its tokens: not on the rows
 * beside it, on how a prompt was cut into steps, on where its state lies, or on threads. */

#include "functions.h"
#include "threads.h"

typedef struct {
    Matrix query, key, value, out, gate, up, down;
    const float *attention_gain, *ffn_gain;           /* [n_embed], in front */
    const float *query_gain, *key_gain;               /* [size], or NULL: not normed */
    const float *post_attention_gain, *post_ffn_gain; /* [n_embed], or NULL: not normed */
    const float *turns; /* complex [n_positions, 3, size / 2]: of queries, keys, values (1) */
    int32_t slides;     /* sees the last `window` positions only */
} Layer;

typedef struct {
    int32_t n_layers, n_embed, n_ffn, n_heads, n_kv, size, window, is_gelu;
    float eps, attention_cap, final_cap;
    const Layer *layers;
    const float *gain; /* [n_embed] in front of the head */
    Matrix head;
} Net;

typedef struct {
    int32_t first_slot, n;
} Run;

typedef struct { /* some consecutive tokens of one sequence, and all they see */
    int32_t first_row, n_rows, first_run, n_runs;
} Sequence;

typedef struct {
    int32_t n_rows, n_sequences, n_wanted, n_slots, n_threads;
    const int32_t *positions, *slots, *wanted; /* wanted: the rows after which scores are */
    const Sequence *sequences;
    const Run *runs;
    uint16_t *const *state; /* of each layer half floats [2 * n_kv, n_slots, size]: keys, values */
    float *hidden;       /* [n_rows, n_embed]: embeddings; overwritten */
    float *scores;       /* [n_wanted, 8 * head.n_groups] */
} Step;

/* Some queries that read the same keys: those of one KV head in neighbouring rows. */
typedef struct {
    const Sequence *sequence;
    int32_t kv_head, first_query, n; /* query q is of row q / group, head q % group */
} Tile;

enum { ROWS_AT_ONCE = 32, POSITIONS_AT_ONCE = 128, WIDTH = 16, MOST_GROUPS = 64 };

typedef struct {
    const Net *net;
    Pool *pool;
    const Step *step;
    int n_rows, n_positions; /* for which there is room */
    void *memory;
    float *qkv, *mixed, *gate_up, *added, *normed, *shares, *share_sums;
    Rounded embed, heads, ffn;
    Tile *tiles;
    int *first_tile; /* of each ROWS_AT_ONCE rows, and the end */
} Context;

static int at_least(int a, int b) { return a > b ? a : b; }
static int at_most(int a, int b) { return a < b ? a : b; }

/* How many of `n` groups a unit has. */
static int unit_size(const Step *step, int n)
{
    return at_most(at_least(n / (step->n_threads * 4), 1), MOST_GROUPS);
}

static int n_units(int n, int of) { return (n + of - 1) / of; }

typedef struct {
    const Matrix *matrix;
    int column; /* of the output */
} Part;

/* One phase: products of all rows with several matrices, of which outputs are neighbours. */
static void products(Worker *worker, const Step *step, const Part *parts, int n_parts,
                     const Rounded *x, int n, float *out, int stride, int adds)
{
    int total = 0;
    for (int p = 0; p < n_parts; p++)
        total += parts[p].matrix->n_groups;
    const int of = unit_size(step, total);
    EACH_UNIT(worker, unit, n_units(total, of)) {
        int first = unit * of, end = at_most(first + of, total);
        for (int p = 0; p < n_parts && first < end; p++) {
            const Matrix *m = parts[p].matrix;
            if (first < m->n_groups)
                multiply(m, first, at_most(end, m->n_groups), x, n, out + parts[p].column, stride,
                         adds);
            first = at_least(first - m->n_groups, 0);
            end -= m->n_groups;
        }
    }
}

/* -- attention -------------------------------------------------------------------------------- */

static int query_row(const Net *net, const Tile *tile, int q)
{
    return tile->sequence->first_row + (tile->first_query + q) / (net->n_heads / net->n_kv);
}

static int query_head(const Net *net, const Tile *tile, int q)
{
    const int group = net->n_heads / net->n_kv;
    return tile->kv_head * group + (tile->first_query + q) % group;
}

/* The first position that a row sees. */
static int first_seen(const Net *net, const Layer *layer, int position)
{
    return layer->slides ? at_least(position - net->window + 1, 0) : 0;
}

static float *shares_of(const Context *c, const Tile *tile, int q)
{
    const int row = query_row(c->net, tile, q) % ROWS_AT_ONCE;
    return c->shares + ((size_t)row * c->net->n_heads + query_head(c->net, tile, q)) * c->n_positions;
}

static void score_unit(const Context *c, const Layer *layer, const uint16_t *state, const Tile *tile,
                       int chunk)
{
    const Net *net = c->net;
    const Step *step = c->step;
    const int last = step->positions[query_row(net, tile, tile->n - 1)];
    const int seen = first_seen(net, layer, step->positions[query_row(net, tile, 0)]);
    const int from = at_least(chunk * POSITIONS_AT_ONCE, seen);
    const int to = at_most((chunk + 1) * POSITIONS_AT_ONCE - 1, last);
    const uint16_t *keys = state + (size_t)tile->kv_head * step->n_slots * net->size;
    const float *queries[TILE];
    float *scores[TILE];
    const int width = (net->n_heads + 2 * net->n_kv) * net->size;
    for (int q = 0; q < tile->n; q++) {
        queries[q] = c->qkv + (size_t)query_row(net, tile, q) * width +
                     query_head(net, tile, q) * net->size;
        scores[q] = shares_of(c, tile, q);
    }
    const Run *run = step->runs + tile->sequence->first_run;
    for (int begin = 0, r = 0; r < tile->sequence->n_runs; begin += run[r++].n) {
        const int at = at_least(begin, from), n = at_most(begin + run[r].n, to + 1) - at;
        const uint16_t *first = keys + (size_t)(run[r].first_slot + at - begin) * net->size;
        switch (n > 0 ? tile->n : 0) {
        case 0: break;
        case 1: score(scores, queries, 1, at, first, n, net->size); break;
        case 2: score(scores, queries, 2, at, first, n, net->size); break;
        case 3: score(scores, queries, 3, at, first, n, net->size); break;
        default: score(scores, queries, TILE, at, first, n, net->size);
        }
    }
}

static void soften_unit(const Context *c, const Layer *layer, const Tile *tile, int q)
{
    const Net *net = c->net;
    const int32_t *positions = c->step->positions;
    const int last = positions[query_row(net, tile, q)];
    const int first = first_seen(net, layer, last);
    float *shares = shares_of(c, tile, q);
    const size_t number = (size_t)query_row(net, tile, q) * net->n_heads + query_head(net, tile, q);
    c->share_sums[number] = soften(shares, first, last, net->attention_cap);
    for (int t = first_seen(net, layer, positions[query_row(net, tile, 0)]); t < (first & ~7); t++)
        shares[t] = 0.0f;
    for (int t = (last | 7) + 1; t <= positions[query_row(net, tile, tile->n - 1)]; t++)
        shares[t] = 0.0f;
}

static void mix_unit(const Context *c, const Layer *layer, const uint16_t *state, const Tile *tile,
                     int column)
{
    const Net *net = c->net;
    const Step *step = c->step;
    const int last = step->positions[query_row(net, tile, tile->n - 1)];
    const int from = first_seen(net, layer, step->positions[query_row(net, tile, 0)]);
    const uint16_t *values = state + (size_t)(net->n_kv + tile->kv_head) * step->n_slots * net->size;
    __m256 acc[TILE][2];
    float *shares[TILE];
    for (int q = 0; q < TILE; q++) {
        acc[q][0] = acc[q][1] = _mm256_setzero_ps();
        shares[q] = shares_of(c, tile, at_most(q, tile->n - 1));
    }
    const Run *run = step->runs + tile->sequence->first_run;
    for (int begin = 0, r = 0; r < tile->sequence->n_runs; begin += run[r++].n) {
        const int at = at_least(begin, from), n = at_most(begin + run[r].n, last + 1) - at;
        const uint16_t *first =
            values + (size_t)(run[r].first_slot + at - begin) * net->size + column;
        switch (n > 0 ? tile->n : 0) {
        case 0: break;
        case 1: mix(acc, shares, 1, at, first, n, net->size); break;
        case 2: mix(acc, shares, 2, at, first, n, net->size); break;
        case 3: mix(acc, shares, 3, at, first, n, net->size); break;
        default: mix(acc, shares, TILE, at, first, n, net->size);
        }
    }
    for (int q = 0; q < tile->n; q++) {
        const size_t number =
            (size_t)query_row(net, tile, q) * net->n_heads + query_head(net, tile, q);
        const __m256 scale = _mm256_set1_ps(1.0f / c->share_sums[number]);
        float *out = c->mixed + number * net->size + column;
        _mm256_storeu_ps(out, _mm256_mul_ps(acc[q][0], scale));
        _mm256_storeu_ps(out + 8, _mm256_mul_ps(acc[q][1], scale));
    }
}

/* Phases: what each row reads, into `mixed`. */
static void attend(const Context *c, Worker *worker, const Layer *layer, const uint16_t *state)
{
    const Net *net = c->net;
    const int n_batches = n_units(c->step->n_rows, ROWS_AT_ONCE);
    for (int batch = 0; batch < n_batches; batch++) {
        const Tile *tiles = c->tiles + c->first_tile[batch];
        const int n = c->first_tile[batch + 1] - c->first_tile[batch];
        int most = 0;
        for (int t = 0; t < n; t++)
            most = at_least(most, c->step->positions[query_row(net, tiles + t, tiles[t].n - 1)] + 1);
        const int n_chunks = n_units(most, POSITIONS_AT_ONCE), n_columns = net->size / WIDTH;
        EACH_UNIT(worker, unit, n * n_chunks)
            score_unit(c, layer, state, tiles + unit / n_chunks, unit % n_chunks);
        EACH_UNIT(worker, unit, n * TILE)
            if (unit % TILE < tiles[unit / TILE].n)
                soften_unit(c, layer, tiles + unit / TILE, unit % TILE);
        EACH_UNIT(worker, unit, n * n_columns)
            mix_unit(c, layer, state, tiles + unit / n_columns, unit % n_columns * WIDTH);
    }
}

/* -- the rest of a layer ---------------------------------------------------------------------- */

/* A row's queries and keys are normed and turned; keys and values go to their slot. */
static void place_row(const Context *c, const Layer *layer, uint16_t *state, int row)
{
    const Net *net = c->net;
    const Step *step = c->step;
    const int size = net->size, n_all = net->n_heads + 2 * net->n_kv;
    float *heads = c->qkv + (size_t)row * n_all * size;
    const float *turns = layer->turns + (size_t)step->positions[row] * 3 * size;
    for (int n = 0; n < net->n_heads + net->n_kv; n++) {
        const int is_key = n >= net->n_heads;
        const float *gain = is_key ? layer->key_gain : layer->query_gain;
        if (gain)
            rms_norm(heads + n * size, heads + n * size, gain, size, net->eps);
        rotate(heads + n * size, turns + is_key * size, size);
    }
    for (int n = 0; n < 2 * net->n_kv; n++)
        to_halves(state + ((size_t)n * step->n_slots + step->slots[row]) * size,
                  heads + (net->n_heads + n) * size, size);
}

/* What is added to the stream goes there at once, or is normed first. */
static float *target(const Context *c, const float *post_gain)
{
    return post_gain ? c->added : c->step->hidden;
}

/* A row of the stream, after what `added` has is added, normed and rounded. */
static void read_row(Context *c, int row, const float *post_gain, const float *gain)
{
    const int n = c->net->n_embed;
    float *hidden = c->step->hidden + (size_t)row * n, *normed = c->normed + (size_t)row * n;
    if (post_gain) {
        rms_norm(normed, c->added + (size_t)row * n, post_gain, n, c->net->eps);
        for (int i = 0; i < n; i++)
            hidden[i] += normed[i];
    }
    if (gain) {
        rms_norm(normed, hidden, gain, n, c->net->eps);
        round_row(&c->embed, row, 0, normed, n);
    }
}

static void feed_forward(Context *c, Worker *worker, const Layer *layer)
{
    const Net *net = c->net;
    const int n_rows = c->step->n_rows, n_ffn = net->n_ffn, stride = 2 * n_ffn;
    const int n_blocks = n_ffn / BLOCK, of = unit_size(c->step, n_blocks);
    const int groups = BLOCK / LANES;
    EACH_UNIT(worker, unit, n_units(n_blocks, of)) {
        const int first = unit * of, end = at_most(first + of, n_blocks);
        multiply(&layer->gate, first * groups, end * groups, &c->embed, n_rows, c->gate_up, stride, 0);
        multiply(&layer->up, first * groups, end * groups, &c->embed, n_rows, c->gate_up + n_ffn,
                 stride, 0);
        for (int row = 0; row < n_rows; row++) {
            float *gate = c->gate_up + (size_t)row * stride + first * BLOCK;
            gated(gate, gate + n_ffn, (end - first) * BLOCK, net->is_gelu);
            round_row(&c->ffn, row, first * BLOCK, gate, (end - first) * BLOCK);
        }
    }
    const Part part = {&layer->down, 0};
    products(worker, c->step, &part, 1, &c->ffn, n_rows, target(c, layer->post_ffn_gain),
             net->n_embed, !layer->post_ffn_gain);
}

static void compute_layer(Context *c, Worker *worker, const Layer *layer, uint16_t *state)
{
    const Net *net = c->net;
    const int n = c->step->n_rows, width = (net->n_heads + 2 * net->n_kv) * net->size;
    const int keys = net->n_heads * net->size, values = keys + net->n_kv * net->size;
    const Part qkv[] = {{&layer->query, 0}, {&layer->key, keys}, {&layer->value, values}};
    products(worker, c->step, qkv, 3, &c->embed, n, c->qkv, width, 0);
    EACH_UNIT(worker, row, n)
        place_row(c, layer, state, row);
    attend(c, worker, layer, state);
    EACH_UNIT(worker, row, n)
        round_row(&c->heads, row, 0, c->mixed + (size_t)row * keys, keys);
    const Part out = {&layer->out, 0};
    products(worker, c->step, &out, 1, &c->heads, n, target(c, layer->post_attention_gain),
             net->n_embed, !layer->post_attention_gain);
    EACH_UNIT(worker, row, n)
        read_row(c, row, layer->post_attention_gain, layer->ffn_gain);
    feed_forward(c, worker, layer);
}

static void compute(void *job, Worker *worker)
{
    Context *c = job;
    const Net *net = c->net;
    const Step *step = c->step;
    EACH_UNIT(worker, row, step->n_rows)
        read_row(c, row, NULL, net->layers[0].attention_gain);
    for (int n = 0; n < net->n_layers; n++) {
        const Layer *layer = &net->layers[n];
        const float *next = n + 1 < net->n_layers ? net->layers[n + 1].attention_gain : NULL;
        compute_layer(c, worker, layer, step->state[n]);
        EACH_UNIT(worker, row, step->n_rows)
            read_row(c, row, layer->post_ffn_gain, next);
    }
    EACH_UNIT(worker, n, step->n_wanted) {
        const float *row = step->hidden + (size_t)step->wanted[n] * net->n_embed;
        float *normed = c->normed + (size_t)n * net->n_embed;
        rms_norm(normed, row, net->gain, net->n_embed, net->eps);
        round_row(&c->embed, n, 0, normed, net->n_embed);
    }
    const Part head = {&net->head, 0};
    const int width = net->head.n_groups * LANES;
    products(worker, step, &head, 1, &c->embed, step->n_wanted, step->scores, width, 0);
    if (net->final_cap > 0.0f)
        EACH_UNIT(worker, n, step->n_wanted)
            soft_cap(step->scores + (size_t)n * width, width, net->final_cap);
}

/* -- memory ----------------------------------------------------------------------------------- */

static size_t reserved(size_t n) { return (n + 63) / 64 * 64; }

/* Lay out the buffers from `base` on, which may be NULL to learn how many bytes they need. */
static size_t lay_out(Context *c, char *base, size_t n, size_t n_positions)
{
    const Net *net = c->net;
    const size_t heads = (size_t)net->n_heads * net->size;
    const size_t all = heads + 2 * (size_t)net->n_kv * net->size;
    size_t at = 0;
#define TAKE(field, count) (field = (void *)(base + at), at += reserved((count) * sizeof *(field)))
    TAKE(c->qkv, n * all);
    TAKE(c->mixed, n * heads);
    TAKE(c->gate_up, n * 2 * net->n_ffn);
    TAKE(c->added, n * net->n_embed);
    TAKE(c->normed, n * net->n_embed);
    TAKE(c->shares, (size_t)ROWS_AT_ONCE * net->n_heads * n_positions);
    TAKE(c->share_sums, n * net->n_heads);
    TAKE(c->tiles, n * net->n_heads);
    TAKE(c->first_tile, n / ROWS_AT_ONCE + 2);
    Rounded *rounded[] = {&c->embed, &c->heads, &c->ffn};
    const int sizes[] = {net->n_embed, (int)heads, net->n_ffn};
    for (int k = 0; k < 3; k++) {
        rounded[k]->n_in = sizes[k];
        TAKE(rounded[k]->quants, n * sizes[k]);
        TAKE(rounded[k]->scales, n * sizes[k] / BLOCK);
        TAKE(rounded[k]->sums, n * sizes[k] / BLOCK);
    }
#undef TAKE
    return at;
}

static int make_room(Context *c, int n_rows, int n_positions)
{
    if (n_rows <= c->n_rows && n_positions <= c->n_positions)
        return 1;
    n_rows = at_least(n_rows, c->n_rows);
    n_positions = at_least((n_positions + 255) / 256 * 256, c->n_positions);
    free(c->memory);
    c->n_rows = c->n_positions = 0;
    c->memory = aligned_alloc(64, lay_out(c, NULL, n_rows, n_positions));
    if (!c->memory)
        return 0;
    lay_out(c, c->memory, n_rows, n_positions);
    c->n_rows = n_rows;
    c->n_positions = n_positions;
    return 1;
}

static void plan_tiles(Context *c)
{
    const Step *step = c->step;
    const int group = c->net->n_heads / c->net->n_kv, n_batches = n_units(step->n_rows, ROWS_AT_ONCE);
    int n = 0;
    for (int batch = 0; batch < n_batches; batch++) {
        const int first = batch * ROWS_AT_ONCE, end = first + ROWS_AT_ONCE;
        c->first_tile[batch] = n;
        for (int s = 0; s < step->n_sequences; s++) {
            const Sequence *q = &step->sequences[s];
            const int from = (at_least(first, q->first_row) - q->first_row) * group;
            const int to = (at_most(end, q->first_row + q->n_rows) - q->first_row) * group;
            for (int head = 0; head < c->net->n_kv; head++)
                for (int query = from; query < to; query += TILE)
                    c->tiles[n++] = (Tile){q, head, query, at_most(TILE, to - query)};
        }
    }
    c->first_tile[n_batches] = n;
}

/* -- what Python calls ------------------------------------------------------------------------ */

Context *voicepipe_open(const Net *net)
{
    Context *c = calloc(1, sizeof(Context));
    if (c && !(c->pool = pool_open(compute))) {
        free(c);
        return NULL;
    }
    if (c)
        c->net = net;
    return c;
}

/* 0 when memory is short: nothing has happened then. */
int voicepipe_step(Context *c, const Step *step)
{
    int n_positions = 0;
    for (int row = 0; row < step->n_rows; row++)
        n_positions = at_least(n_positions, step->positions[row] + 1);
    if (!make_room(c, step->n_rows, n_positions))
        return 0;
    c->step = step;
    plan_tiles(c);
    const int n_phases = c->net->n_layers * (8 + 3 * n_units(step->n_rows, ROWS_AT_ONCE)) + 5;
    return pool_run(c->pool, c, step->n_threads, n_phases);
}

void voicepipe_close(Context *c)
{
    pool_close(c->pool);
    free(c->memory);
    free(c);
}

/* out [n, 8 * n_groups] = x [n, n_in] W^T + b, on one thread; 0 when memory is short. */
int voicepipe_multiply(const Matrix *m, const float *x, int n, float *out)
{
    const size_t n_values = (size_t)n * m->n_in, n_blocks = n_values / BLOCK;
    Rounded rounded = {malloc(n_values), malloc(sizeof(float) * n_blocks),
                       malloc(sizeof(float) * n_blocks), m->n_in};
    const int has_room = rounded.quants && rounded.scales && rounded.sums;
    if (has_room) {
        for (int row = 0; row < n; row++)
            round_row(&rounded, row, 0, x + (size_t)row * m->n_in, m->n_in);
        multiply(m, 0, m->n_groups, &rounded, n, out, m->n_groups * LANES, 0);
    }
    free(rounded.quants);
    free(rounded.scales);
    free(rounded.sums);
    return has_room;
}
