/* Norms, activations and attention of single rows, by AVX2; sizes are multiples of 32. */

#pragma once

#include "products.h"

/* exp, relative error 2e-7: the nearest power of two times a polynomial (Cephes' expf). */
INLINE __m256 exp_8(__m256 x)
{
    x = _mm256_max_ps(_mm256_min_ps(x, _mm256_set1_ps(88.0f)), _mm256_set1_ps(-87.0f));
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    x = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    x = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), x);
    __m256 y = _mm256_set1_ps(1.9875691500e-4f);
    y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(1.3981999507e-3f));
    y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(8.3334519073e-3f));
    y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(4.1665795894e-2f));
    y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(1.6666665459e-1f));
    y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(5.0000001201e-1f));
    y = _mm256_fmadd_ps(y, _mm256_mul_ps(x, x), _mm256_add_ps(x, _mm256_set1_ps(1.0f)));
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(y, _mm256_castsi256_ps(power));
}

INLINE __m256 sigmoid_8(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    return _mm256_div_ps(one, _mm256_add_ps(one, exp_8(_mm256_sub_ps(_mm256_setzero_ps(), x))));
}

/* gate[i] = activation(gate[i]) * up[i]: SiLU, or GELU by its tanh form. */
static void gated(float *gate, const float *up, int n, int is_gelu)
{
    for (int i = 0; i < n; i += 8) {
        __m256 x = _mm256_loadu_ps(gate + i), inner = x;
        if (is_gelu) { /* 0.5 x (1 + tanh(y)) = x sigmoid(2 y) */
            __m256 cube = _mm256_mul_ps(_mm256_mul_ps(x, x), x);
            inner = _mm256_mul_ps(_mm256_fmadd_ps(cube, _mm256_set1_ps(0.044715f), x),
                                  _mm256_set1_ps(1.5957691216f));
        }
        x = _mm256_mul_ps(x, sigmoid_8(inner));
        _mm256_storeu_ps(gate + i, _mm256_mul_ps(x, _mm256_loadu_ps(up + i)));
    }
}

/* out = x / rms(x) * gain (1 where there is none), of `n` values; `out` may be `x`. */
static void rms_norm(float *out, const float *x, const float *gain, int n, float eps)
{
    __m256 sum = _mm256_setzero_ps();
    for (int i = 0; i < n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        sum = _mm256_fmadd_ps(v, v, sum);
    }
    const __m256 scale = _mm256_set1_ps(1.0f / sqrtf(lane_sum(sum) / (float)n + eps));
    for (int i = 0; i < n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), scale);
        _mm256_storeu_ps(out + i, gain ? _mm256_mul_ps(v, _mm256_loadu_ps(gain + i)) : v);
    }
}

/* x = cap * tanh(x / cap) */
static void soft_cap(float *x, int n, float cap)
{
    const __m256 two = _mm256_set1_ps(2.0f / cap), by = _mm256_set1_ps(cap);
    for (int i = 0; i < n; i += 8) {
        __m256 s = sigmoid_8(_mm256_mul_ps(_mm256_loadu_ps(x + i), two));
        s = _mm256_fmsub_ps(s, _mm256_set1_ps(2.0f), _mm256_set1_ps(1.0f));
        _mm256_storeu_ps(x + i, _mm256_mul_ps(s, by));
    }
}

/* Neighbouring elements of `head` times the complex numbers `turn`. */
static void rotate(float *head, const float *turn, int size)
{
    for (int i = 0; i < size; i += 2) {
        const float a = head[i], b = head[i + 1];
        head[i] = a * turn[i] - b * turn[i + 1];
        head[i + 1] = a * turn[i + 1] + b * turn[i];
    }
}

static void to_halves(uint16_t *out, const float *x, int n)
{
    for (int i = 0; i < n; i += 8)
        _mm_storeu_si128((__m128i *)(out + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
}

/* scores[q][0..n - 1] = queries[q] . keys[0..n - 1], two keys at a time */
INLINE void score(float *const *scores, const float *const *queries, int n_queries, int at,
                  const uint16_t *keys, int n, int size)
{
    int t = 0;
    for (; t + 2 <= n; t += 2, keys += 2 * size) {
        __m256 acc[TILE][2];
        for (int q = 0; q < n_queries; q++)
            acc[q][0] = acc[q][1] = _mm256_setzero_ps();
        for (int i = 0; i < size; i += 8) {
            const __m256 k0 = halves(keys + i), k1 = halves(keys + size + i);
            for (int q = 0; q < n_queries; q++) {
                const __m256 v = _mm256_loadu_ps(queries[q] + i);
                acc[q][0] = _mm256_fmadd_ps(v, k0, acc[q][0]);
                acc[q][1] = _mm256_fmadd_ps(v, k1, acc[q][1]);
            }
        }
        for (int q = 0; q < n_queries; q++) {
            scores[q][at + t] = lane_sum(acc[q][0]);
            scores[q][at + t + 1] = lane_sum(acc[q][1]);
        }
    }
    if (t < n)
        for (int q = 0; q < n_queries; q++) {
            __m256 acc = _mm256_setzero_ps();
            for (int i = 0; i < size; i += 8)
                acc = _mm256_fmadd_ps(_mm256_loadu_ps(queries[q] + i), halves(keys + i), acc);
            scores[q][at + t] = lane_sum(acc);
        }
}

/* acc[q] += shares[q][at + t] * values[t][0..15] over t = 0..n - 1 */
INLINE void mix(__m256 (*acc)[2], float *const *shares, int n_queries, int at, const uint16_t *values,
                int n, int size)
{
    for (int t = 0; t < n; t++, values += size) {
        const __m256 v0 = halves(values), v1 = halves(values + 8);
        for (int q = 0; q < n_queries; q++) {
            const __m256 share = _mm256_set1_ps(shares[q][at + t]);
            acc[q][0] = _mm256_fmadd_ps(share, v0, acc[q][0]);
            acc[q][1] = _mm256_fmadd_ps(share, v1, acc[q][1]);
        }
    }
}

/* Scores of the positions first..last into their exponentials over the greatest, other positions
 * of the same and the neighbouring vectors into 0. Returns the sum, in lanes by position. */
static float soften(float *scores, int first, int last, float cap)
{
    const int from = first & ~7, end = (last | 7) + 1;
    if (cap > 0.0f)
        soft_cap(scores + from, end - from, cap);
    for (int t = from; t < first; t++)
        scores[t] = -INFINITY;
    for (int t = last + 1; t < end; t++)
        scores[t] = -INFINITY;
    __m256 most = _mm256_set1_ps(-INFINITY), sum = _mm256_setzero_ps();
    for (int t = from; t < end; t += 8)
        most = _mm256_max_ps(most, _mm256_loadu_ps(scores + t));
    most = _mm256_set1_ps(lane_max(most));
    for (int t = from; t < end; t += 8) {
        __m256 x = _mm256_sub_ps(_mm256_loadu_ps(scores + t), most);
        __m256 hidden = _mm256_cmp_ps(x, _mm256_set1_ps(-INFINITY), _CMP_EQ_OQ);
        x = _mm256_andnot_ps(hidden, exp_8(x));
        _mm256_storeu_ps(scores + t, x);
        sum = _mm256_add_ps(sum, x);
    }
    return lane_sum(sum);
}
