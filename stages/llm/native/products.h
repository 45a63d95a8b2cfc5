/* Products of rows with weights in 4 or 8 bits, by AVX2.
 *
 * Weights keep the blocks of 32 inputs that GGUF files have, with a scale and, in 4 bits, a least
 * value each; activations are rounded to 8 bits with a scale a block. Eight outputs are computed at
 * once, one in each lane, from weights that are interleaved for it. A row's result does not depend
 * on the rows beside it: the same operations in the same order make it, whatever the batch. */

#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { BLOCK = 32, LANES = 8, TILE = 4 };

typedef struct {
    /* [n_groups][n_in / 32]: of each output of a group four inputs, [8][4] bytes, of which there
     * are 8 in 8 bits, signed; in 4 bits 4, with the inputs from 16 on in the high halves */
    const uint8_t *quants;
    const uint16_t *scales; /* half floats [n_groups][n_in / 32][8] */
    const uint16_t *least;  /* as scales; NULL in 8 bits */
    const float *bias;      /* [8 * n_groups] or NULL */
    int32_t n_groups, n_in;
} Matrix;

typedef struct { /* rows of activations in 8 bits */
    int8_t *quants;
    float *scales, *sums; /* of each block: its scale, the sum of its values */
    int n_in;
} Rounded;

#define INLINE static inline __attribute__((always_inline))

INLINE __m256 halves(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE __m256i four_inputs(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

INLINE float lane_sum(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

INLINE float lane_max(__m256 v)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

/* Round `n` values (whole blocks) of row `row`, from input `at` on. */
static void round_row(Rounded *x, int row, int at, const float *values, int n)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    int8_t *quants = x->quants + (size_t)row * x->n_in + at;
    size_t block = ((size_t)row * x->n_in + at) / BLOCK;
    for (int i = 0; i < n; i += BLOCK, block++) {
        __m256 v[4], peak = _mm256_setzero_ps();
        for (int k = 0; k < 4; k++) {
            v[k] = _mm256_loadu_ps(values + i + 8 * k);
            peak = _mm256_max_ps(peak, _mm256_andnot_ps(sign, v[k]));
        }
        float most = lane_max(peak);
        float scale = most / 127.0f, inverse = most > 0.0f ? 127.0f / most : 0.0f;
        __m256i q[4], total = _mm256_setzero_si256();
        for (int k = 0; k < 4; k++) {
            q[k] = _mm256_cvtps_epi32(_mm256_mul_ps(v[k], _mm256_set1_ps(inverse)));
            total = _mm256_add_epi32(total, q[k]);
        }
        __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]),
                                           _mm256_packs_epi32(q[2], q[3]));
        bytes = _mm256_permutevar8x32_epi32(bytes, order);
        _mm256_storeu_si256((__m256i *)(quants + i), bytes);
        x->scales[block] = scale;
        x->sums[block] = scale * lane_sum(_mm256_cvtepi32_ps(total));
    }
}

/* Add to acc[r] the products of a group's weights in 4 bits with row `row` + r. Eight sums of two
 * products of at most 15 * 127 fit 16 bits. */
INLINE void add_4_bits(const Matrix *m, int group, const Rounded *x, int row, int n, __m256 *acc)
{
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    const int n_blocks = m->n_in / BLOCK;
    const size_t first = (size_t)group * n_blocks;
    const uint8_t *quants = m->quants + first * (BLOCK * LANES / 2);
    const int8_t *inputs = x->quants + (size_t)row * m->n_in;
    for (int b = 0; b < n_blocks; b++, quants += BLOCK * LANES / 2, inputs += BLOCK) {
        __m256i w[8];
        for (int k = 0; k < 4; k++) {
            __m256i both = _mm256_loadu_si256((const __m256i *)(quants + 32 * k));
            w[k] = _mm256_and_si256(both, low);
            w[k + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
        }
        const __m256 scale = halves(m->scales + (first + b) * LANES);
        const __m256 least = halves(m->least + (first + b) * LANES);
        for (int r = 0; r < n; r++) {
            const int8_t *q = inputs + (size_t)r * m->n_in;
            __m256i sum = _mm256_maddubs_epi16(w[0], four_inputs(q));
            for (int k = 1; k < 8; k++)
                sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w[k], four_inputs(q + 4 * k)));
            __m256 dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(sum, ones));
            const size_t at = (size_t)(row + r) * n_blocks + b;
            acc[r] = _mm256_fmadd_ps(dot, _mm256_mul_ps(scale, _mm256_set1_ps(x->scales[at])), acc[r]);
            acc[r] = _mm256_fmadd_ps(least, _mm256_set1_ps(x->sums[at]), acc[r]);
        }
    }
}

/* The same in 8 bits: maddubs takes the weights' signs from the inputs. */
INLINE void add_8_bits(const Matrix *m, int group, const Rounded *x, int row, int n, __m256 *acc)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const int n_blocks = m->n_in / BLOCK;
    const size_t first = (size_t)group * n_blocks;
    const uint8_t *quants = m->quants + first * (BLOCK * LANES);
    const int8_t *inputs = x->quants + (size_t)row * m->n_in;
    for (int b = 0; b < n_blocks; b++, quants += BLOCK * LANES, inputs += BLOCK) {
        __m256i sum[TILE];
        for (int r = 0; r < n; r++)
            sum[r] = _mm256_setzero_si256();
        for (int k = 0; k < 8; k++) {
            const __m256i w = _mm256_loadu_si256((const __m256i *)(quants + 32 * k));
            const __m256i size = _mm256_abs_epi8(w);
            for (int r = 0; r < n; r++) {
                __m256i q = four_inputs(inputs + (size_t)r * m->n_in + 4 * k);
                __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(q, w));
                sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(pairs, ones));
            }
        }
        const __m256 scale = halves(m->scales + (first + b) * LANES);
        for (int r = 0; r < n; r++) {
            const size_t at = (size_t)(row + r) * n_blocks + b;
            acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r]),
                                     _mm256_mul_ps(scale, _mm256_set1_ps(x->scales[at])), acc[r]);
        }
    }
}

INLINE void group_rows(const Matrix *m, int group, const Rounded *x, int row, int n, float *out,
                       int stride, int adds)
{
    __m256 acc[TILE];
    for (int r = 0; r < n; r++)
        acc[r] = m->bias ? _mm256_loadu_ps(m->bias + group * LANES) : _mm256_setzero_ps();
    if (m->least)
        add_4_bits(m, group, x, row, n, acc);
    else
        add_8_bits(m, group, x, row, n, acc);
    for (int r = 0; r < n; r++) {
        float *to = out + (size_t)(row + r) * stride + group * LANES;
        _mm256_storeu_ps(to, adds ? _mm256_add_ps(_mm256_loadu_ps(to), acc[r]) : acc[r]);
    }
}

/* Groups first..end - 1 of the products of rows 0..n - 1, into out[row * stride + output], or added
 * to what is there. */
static void multiply(const Matrix *m, int first, int end, const Rounded *x, int n, float *out,
                     int stride, int adds)
{
    int row = 0;
    for (; row + TILE <= n; row += TILE)
        for (int group = first; group < end; group++)
            group_rows(m, group, x, row, TILE, out, stride, adds);
    for (int group = first; group < end && row < n; group++)
        if (n - row == 3)
            group_rows(m, group, x, row, 3, out, stride, adds);
        else if (n - row == 2)
            group_rows(m, group, x, row, 2, out, stride, adds);
        else
            group_rows(m, group, x, row, 1, out, stride, adds);
}
