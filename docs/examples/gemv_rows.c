/* P3's exact product in C: reads the calls of one directory and answers them into another.
 *
 *     cc -std=c11 -O2 -ffp-contract=off gemv_rows.c -lm -o gemv_rows
 *     rowtwin vectors export p3 --phase 3 && ./gemv_rows p3/inputs p3/outputs
 *     rowtwin vectors check p3
 *     rowtwin gate --phase 3 --candidate cmd:./gemv_rows
 *
 * The numbers in brackets are items of contracts/arithmetic.md. Types other than the four with an
 * exact product are declined. Little-endian machines only. Without -ffp-contract=off a compiler may
 * fuse a product into a sum, which rounds once where the text says twice. */
#include <dirent.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char *text; uint8_t *data; size_t size; } File;
typedef struct { uint8_t *data; long shape[2]; } Matrix;

static void fail(const char *what, const char *name) {
    fprintf(stderr, "%s: %s\n", name, what);
    exit(1);
}

/* A safetensors file: eight bytes of length, a header in JSON, then the tensors' bytes. */
static File load(const char *path) {
    FILE *f = fopen(path, "rb");
    uint64_t length = 0;
    if (!f || fread(&length, 8, 1, f) != 1 || length > 1 << 16) fail("is no safetensors file", path);
    File file = {calloc(length + 1, 1), NULL, 0};
    if (!file.text || fread(file.text, 1, length, f) != length) fail("is cut short", path);
    fseek(f, 0, SEEK_END);
    file.size = (size_t)ftell(f) - 8 - length;
    file.data = malloc(file.size + 1);
    fseek(f, (long)(8 + length), SEEK_SET);
    if (!file.data || fread(file.data, 1, file.size, f) != file.size) fail("is cut short", path);
    fclose(f);
    return file;
}

/* What follows "key": in a header; the headers that rowtwin writes hold every key once. */
static const char *find(const File *file, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(file->text, quoted);
    return at ? at + strlen(quoted) : NULL;
}

static Matrix matrix(const File *file, const char *name, const char *path) {
    const char *at = find(file, name), *shape = at ? strstr(at, "\"shape\":[") : NULL;
    const char *bytes = at ? strstr(at, "\"data_offsets\":[") : NULL;
    Matrix m = {NULL, {0, 0}};
    long from = 0, to = 0;
    if (!shape || !bytes || sscanf(shape + 9, "%ld,%ld", &m.shape[0], &m.shape[1]) != 2
        || sscanf(bytes + 16, "%ld,%ld", &from, &to) != 2 || from < 0 || to < from
        || (size_t)to > file->size) fail("lacks a matrix", path);
    m.data = file->data + from;
    return m;
}

static void save(const char *path, const char *metadata, const float *out, long m, long n) {
    char header[512];
    size_t size = out ? (size_t)(m * n) * 4 : 0;
    int length = snprintf(header, sizeof header, "{\"__metadata__\":{%s}", metadata);
    if (out)
        length += snprintf(header + length, sizeof header - (size_t)length,
                           ",\"out\":{\"dtype\":\"F32\",\"shape\":[%ld,%ld],\"data_offsets\":[0,%zu]}",
                           m, n, size);
    length += snprintf(header + length, sizeof header - (size_t)length, "}");
    uint64_t prefix = (uint64_t)length;
    FILE *f = fopen(path, "wb");
    if (!f) fail("cannot be written", path);
    int bad = fwrite(&prefix, 8, 1, f) != 1 || fwrite(header, 1, prefix, f) != prefix
              || fwrite(out, 1, size, f) != size;
    if (fclose(f) || bad) fail("cannot be written", path);
}

static float f32(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static uint32_t bits(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }

static float half(const uint8_t *p) {
    int h = p[0] | p[1] << 8, exponent = h >> 10 & 31, fraction = h & 1023;
    float x = exponent ? ldexpf((float)(1024 + fraction), exponent - 25) : ldexpf((float)fraction, -24);
    return h >> 15 ? -x : x;
}

/* Activations of a group as integers a[256]; returns their scale s [2-4]. */
static float integers(const float *x, long count, int64_t *a) {
    uint32_t largest = 0;
    for (long k = 0; k < count; k++) {
        uint32_t size = bits(x[k]) & 0x7fffffff;
        if (size > largest) largest = size;
    }
    memset(a, 0, 256 * sizeof *a);
    if (largest >= 0x7f800000) return NAN;
    int e = (int)((largest + 0x010101) >> 23) - 126;
    if (e < -77) e = -77;
    float r = f32((uint32_t)(150 - e) << 23);
    for (long k = 0; k < count; k++) {
        float y = x[k] * r;
        int64_t size = bits(fabsf(y) + 8388608.0f) & 0x7fffff;
        a[k] = y < 0 ? -size : size;
    }
    return f32((uint32_t)(e + 104) << 23);
}

/* A group of Q4_K or Q5_K: (d f(P)) - (dmin f(M)) [5]. */
static float q4_or_q5(const uint8_t *b, const int64_t *a, int five) {
    int64_t P = 0, M = 0;
    const uint8_t *scales = b + 4, *high = b + 16, *low = b + (five ? 48 : 16);
    for (int j = 0; j < 8; j++) {
        int sc = j < 4 ? scales[j] & 63 : (scales[j + 4] & 15) | scales[j - 4] >> 6 << 4;
        int mn = j < 4 ? scales[j + 4] & 63 : scales[j + 4] >> 4 | scales[j] >> 6 << 4;
        int64_t dot = 0, sum = 0;
        for (int i = 0; i < 32; i++) {
            int q = low[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
            if (five) q |= (high[i] >> j & 1) << 4;
            dot += q * a[32 * j + i];
            sum += a[32 * j + i];
        }
        P += sc * dot;
        M += mn * sum;
    }
    float product = half(b) * (float)P, minimum = half(b + 2) * (float)M;
    return product - minimum;
}

static float q6(const uint8_t *b, const int64_t *a) {
    int64_t P = 0;
    for (int k = 0; k < 256; k++) {
        int part = k / 128, in = k % 128;
        int low = b[64 * part + in % 64] >> (in / 64 * 4) & 15;
        int high = b[128 + 32 * part + in % 32] >> (in / 32 * 2) & 3;
        P += (int8_t)b[192 + k / 16] * ((low | high << 4) - 32) * a[k];
    }
    return half(b + 208) * (float)P;
}

/* A group of up to eight blocks of Q8_0; the last of a row may have fewer. */
static float q8(const uint8_t *b, const int64_t *a, long blocks) {
    float t[8] = {0};
    for (long j = 0; j < blocks; j++) {
        int64_t P = 0;
        for (int i = 0; i < 32; i++) P += (int8_t)b[34 * j + 2 + i] * a[32 * j + i];
        t[j] = half(b + 34 * j) * (float)P;
    }
    return ((t[0] + t[1]) + (t[2] + t[3])) + ((t[4] + t[5]) + (t[6] + t[7]));
}

/* One row of the matrix with one row of x, segment by segment [6]. */
static float dot(int type, const uint8_t *weights, const int64_t *a, const float *s, long K) {
    static const int size[] = {[4] = 144, [5] = 176, [6] = 210, [8] = 8 * 34};
    long groups = (K + 255) / 256;
    float y = 0;
    for (long first = 0; first < groups; first += 4) {
        float segment = 0;
        for (long g = first; g < first + 4 && g < groups; g++) {
            const uint8_t *b = weights + g * size[type];
            const int64_t *of = a + 256 * g;
            float v = type == 6 ? q6(b, of) : type == 8 ? q8(b, of, g < K / 256 ? 8 : K % 256 / 32)
                                                        : q4_or_q5(b, of, type == 5);
            segment += v * s[g];
        }
        y += segment;
    }
    return y;
}

static void answer(const char *in, const char *out) {
    File file = load(in);
    const char *op = find(&file, "op"), *name = find(&file, "type");
    int type = name && strlen(name) > 4 && name[1] == 'Q' ? name[2] - '0' : 0;
    if (!op || strncmp(op, "\"gemv_rows\"", 11) || !type) {
        save(out, "\"declined\":\"only gemv_rows of Q4_K, Q5_K, Q6_K and Q8_0\"", NULL, 0, 0);
    } else {
        Matrix w = matrix(&file, "weights", in), x = matrix(&file, "x", in);
        long m = x.shape[0], K = x.shape[1], N = w.shape[0], groups = (K + 255) / 256;
        int64_t *a = malloc((size_t)groups * 256 * sizeof *a);
        float *s = malloc((size_t)groups * sizeof *s), *y = malloc((size_t)(m * N) * sizeof *y);
        float *row_of_x = malloc((size_t)K * sizeof *row_of_x);
        if (!a || !s || !y || !row_of_x) fail("needs more memory than there is", in);
        for (long row = 0; row < m; row++) {
            memcpy(row_of_x, x.data + 4 * row * K, (size_t)K * 4);
            for (long g = 0; g < groups; g++)
                s[g] = integers(row_of_x + 256 * g, K - 256 * g < 256 ? K - 256 * g : 256, a + 256 * g);
            for (long n = 0; n < N; n++)
                y[row * N + n] = dot(type, w.data + n * w.shape[1], a, s, K);
        }
        save(out, "\"arithmetic\":\"exact-23\"", y, m, N);
        free(a), free(s), free(y), free(row_of_x);
    }
    free(file.text), free(file.data);
}

int main(int argc, char **argv) {
    if (argc != 3) fail("usage: gemv_rows IN OUT", argv[0]);
    DIR *folder = opendir(argv[1]);
    if (!folder) fail("cannot be opened", argv[1]);
    for (struct dirent *entry; (entry = readdir(folder));) {
        char in[4096], out[4096];
        if (!strstr(entry->d_name, ".safetensors")) continue;
        snprintf(in, sizeof in, "%s/%s", argv[1], entry->d_name);
        snprintf(out, sizeof out, "%s/%s", argv[2], entry->d_name);
        answer(in, out);
    }
    closedir(folder);
    return 0;
}
