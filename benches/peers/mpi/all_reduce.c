/* Times MPI_Allreduce of floats in place, for one message size:
 *
 *     all_reduce BYTES SAMPLES WARMUP ROTATE_BYTES
 *
 * It does what `bonfire bench all-reduce` does, step by step: operations take turns in buffers that
 * are larger than the caches together, all data look random, every result is verified off the
 * clock, operations shorter than 20 us are timed in batches, and each figure is that of the rank
 * where it is largest. Rank 0 prints one JSON object. */

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { SLOTS_MAX = 512, SAMPLE_MIN_NS = 20000, NUMBERS = 4096 };

struct run {
    int rank, ranks;
    size_t count;
    int slots;
    float *slot[SLOTS_MAX];
    uint32_t operations;
    long long wrong;
};

/* A small whole number that looks random: sums of them are exact. */
static inline float number(uint32_t rank, uint32_t operation, uint32_t index) {
    uint32_t seed = rank * 0x85ebca6bu + operation * 0xc2b2ae35u;
    uint32_t mixed = (index ^ seed) * 0x9e3779b1u;
    mixed = (mixed ^ (mixed >> 15)) * 0x85ebca77u;
    return (float)(int32_t)(((mixed >> 16) * NUMBERS) >> 16);
}

static void fill(struct run *run, int used) {
    for (int slot = 0; slot < used; slot++)
        for (size_t index = 0; index < run->count; index++)
            run->slot[slot][index] = number(run->rank, run->operations + slot, index);
}

static void verify(struct run *run, int used) {
    for (int slot = 0; slot < used; slot++)
        for (size_t index = 0; index < run->count; index++) {
            float sum = 0;
            for (int rank = 0; rank < run->ranks; rank++)
                sum += number(rank, run->operations + slot, index);
            run->wrong += run->slot[slot][index] != sum;
        }
}

/* `samples` samples of `batch` operations, each operation in a buffer of its own. */
static void round_of(struct run *run, int samples, int batch, double *times) {
    int used = samples * batch;
    fill(run, used);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int sample = 0; sample < samples; sample++) {
        double started = MPI_Wtime();
        for (int slot = sample * batch; slot < (sample + 1) * batch; slot++)
            MPI_Allreduce(MPI_IN_PLACE, run->slot[slot], (int)run->count, MPI_FLOAT, MPI_SUM,
                          MPI_COMM_WORLD);
        times[sample] = (MPI_Wtime() - started) / batch;
    }
    verify(run, used);
    run->operations += used;
}

static int ascending(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* Operations off the record; how many of them make a sample, agreed from rank 0. */
static int warm_up(struct run *run, int warmup) {
    double times[SLOTS_MAX], fastest = 1e9;
    for (int left = warmup; left > 0;) {
        int now = left < run->slots ? left : run->slots;
        round_of(run, now, 1, times);
        for (int sample = 0; sample < now; sample++)
            fastest = times[sample] < fastest ? times[sample] : fastest;
        left -= now;
    }
    double wanted = SAMPLE_MIN_NS * 1e-9 / (fastest > 1e-9 ? fastest : 1e-9);
    int batch = wanted < 1 ? 1 : wanted > run->slots ? run->slots : (int)wanted + 1;
    batch = batch > run->slots ? run->slots : batch;
    MPI_Bcast(&batch, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return batch;
}

static void report(struct run *run, double *times, int samples, int batch) {
    qsort(times, samples, sizeof *times, ascending);
    double own[3] = {times[0], times[samples / 2], 0}, slowest[3];
    for (int sample = 0; sample < samples; sample++) own[2] += times[sample] / samples;
    long long wrong;
    MPI_Reduce(own, slowest, 3, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&run->wrong, &wrong, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (run->rank == 0)
        printf("{\"min_us\": %.4f, \"time_us\": %.4f, \"mean_us\": %.4f, \"batch\": %d, "
               "\"wrong\": %lld}\n",
               slowest[0] * 1e6, slowest[1] * 1e6, slowest[2] * 1e6, batch, wrong);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 5) {
        fprintf(stderr, "usage: all_reduce BYTES SAMPLES WARMUP ROTATE_BYTES\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    size_t bytes = strtoull(argv[1], NULL, 10), rotate = strtoull(argv[4], NULL, 10);
    int samples = atoi(argv[2]), warmup = atoi(argv[3]);
    struct run run = {.count = bytes / sizeof(float)};
    MPI_Comm_rank(MPI_COMM_WORLD, &run.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &run.ranks);
    size_t slots = (rotate + bytes - 1) / bytes;
    run.slots = slots < 2 ? 2 : slots > SLOTS_MAX ? SLOTS_MAX : (int)slots;
    double *times = malloc(samples * sizeof *times);
    for (int slot = 0; slot < run.slots; slot++) run.slot[slot] = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    int batch = warm_up(&run, warmup > 0 ? warmup : 1);
    for (int done = 0; done < samples;) {
        int now = run.slots / batch < samples - done ? run.slots / batch : samples - done;
        round_of(&run, now, batch, times + done);
        done += now;
    }
    report(&run, times, samples, batch);
    MPI_Finalize();
    return run.wrong > 0;
}
