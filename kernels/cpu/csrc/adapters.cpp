// Adapters: out += scale · B(A x), for tiles of rows with one adapter (Hu et al. 2021, LoRA).
//
// Layout (made by adapters.py): A in panels of LANES ranks, step by step, a step being one input, or for bfloat16 two;
// B in panels of LANES outputs, rank by rank. A x is in float32 and never rounded. Every sum has one order: A's steps
// go to STEPS sums in turn, B's products are added in the order of the ranks. So neither the other rows nor the tiles
// change a row's bits.

#include "arguments.h"
#include "dense_panels.h"

namespace {

constexpr int STEPS = 4;                     // sums of a product, because one would wait for each addition
constexpr int PARTS = LANES / WIDTH;         // registers of a panel
constexpr int FEW = PARTS == 1 ? 6 : 1;      // rows that A multiplies at once: their sums fill the registers
constexpr int MANY = PARTS == 1 ? 16 : 4;    // rows that B multiplies at once
constexpr int64_t PANELS = 8;                // panels of B in an item of work
constexpr int64_t TILE = 16;
// Lines of memory that are fetched ahead, because a tile of few rows waits for memory: eight adapters of SmolLM2 took
// 10.7 ms of a core without, 8.3 with 32, 8.7 with 16 or 80.
constexpr int64_t AHEAD = 32;

struct Tile {
    const struct Part* parts;
    int64_t num_rows, rows[TILE];
};
struct Part {  // of an adapter
    const void *a, *b;
    int64_t rank;  // 0: nothing is added
    double scale;
};

inline int64_t panels(int64_t count) { return (count + LANES - 1) / LANES; }

inline sums_t load_sums(const float* from) { return load_vector<sums_t>(from); }
inline sums_t load_sums(const bf16* from) {
#ifdef __AVX512F__
    return load(from);
#else
    typedef uint16_t halves_t __attribute__((vector_size(WIDTH * 2), aligned(2)));
    typedef uint32_t words_t __attribute__((vector_size(WIDTH * 4), aligned(4)));
    return (sums_t)(__builtin_convertvector(load_vector<halves_t>(from), words_t) << 16);
#endif
}

template <typename T>
class Product {
    typedef typename Operand<T>::Scalar Scalar;
    typedef typename Lanes<Scalar>::type lanes_t;
    static constexpr int64_t PACK = Operand<T>::PACK;

   public:
    Product(const AddAdapters<T>& a, const Team& team)
        : a(a), tiles((const Tile*)a.tiles), team(team), num_steps((a.num_inputs + PACK - 1) / PACK) {
        for (int64_t tile = 0; tile < a.num_tiles; tile++) {
            const int64_t own = panels_before(tiles[tile], a.num_parts) * LANES;
            if (own > width) width = own;
        }
    }

    void run() {
        if (!width) return;
        hidden = (float*)team.share(a.num_tiles * TILE * width * sizeof(float));
        share([&](int64_t tile, const Part& part, int64_t number, float* to) {
            const int64_t num_panels = panels(part.rank);
            for (int64_t panel = 0; panel < num_panels; panel++)
                if (is_mine()) shrink(tiles[tile], part, panel, to + panel * LANES);
        });
        team.barrier();
        turn = 0;
        share([&](int64_t tile, const Part& part, int64_t number, float* from) {
            const int64_t num_panels = panels(a.outputs[2 * number + 1]);
            for (int64_t panel = 0; panel < num_panels; panel += PANELS)
                if (is_mine())
                    for (int64_t each = panel; each < panel + PANELS && each < num_panels; each++)
                        expand(tiles[tile], part, number, each, from);
        });
    }

   private:
    const AddAdapters<T>& a;
    const Tile* tiles;
    const Team& team;
    const int64_t num_steps;
    int64_t width = 0, turn = 0;
    float* hidden = nullptr;

    bool is_mine() { return turn++ % team.num_threads == team.thread; }

    int64_t panels_before(const Tile& tile, int64_t number) const {
        int64_t count = 0;
        for (int64_t part = 0; part < number; part++) count += panels(tile.parts[a.first_part + part].rank);
        return count;
    }

    // Calls f(tile, part, number, hidden values of the tile's first row) for each part that an adapter has.
    template <typename Function>
    void share(Function f) {
        for (int64_t tile = 0; tile < a.num_tiles; tile++)
            for (int64_t number = 0; number < a.num_parts; number++) {
                const Part& part = tiles[tile].parts[a.first_part + number];
                if (part.rank) f(tile, part, number, hidden + tile * TILE * width + panels_before(tiles[tile], number) * LANES);
            }
    }

    const char* row(const Tile& tile, int64_t m) const { return (const char*)(a.x + tile.rows[m] * a.num_inputs); }

    void shrink(const Tile& tile, const Part& part, int64_t panel, float* to) const {
        const Scalar* weights = (const Scalar*)part.a + panel * num_steps * LANES;
        for (int64_t m = 0; m < tile.num_rows; m += FEW)
            shrink_rows<FEW>(int(tile.num_rows - m < FEW ? tile.num_rows - m : FEW), tile, m, weights, float(part.scale), to);
    }

    template <int M>
    void shrink_rows(int count, const Tile& tile, int64_t first, const Scalar* weights, float scale, float* to) const {
        if constexpr (M > 1)
            if (count < M) return shrink_rows<M - 1>(count, tile, first, weights, scale, to);
        const char* rows[M];
        for (int m = 0; m < M; m++) rows[m] = row(tile, first + m);
        sums_t sums[STEPS][M][PARTS] = {};
        const int64_t num_whole = a.num_inputs / PACK;
        auto step = [&](int64_t k, int i) __attribute__((always_inline)) {
            lanes_t lanes[PARTS];
            __builtin_prefetch(weights + (k + AHEAD) * LANES, 0, 2);
            for (int p = 0; p < PARTS; p++) lanes[p] = load_vector<lanes_t>(weights + k * LANES + p * WIDTH);
            for (int m = 0; m < M; m++) {
                Scalar input;
                if (k < num_whole) {
                    std::memcpy(&input, rows[m] + k * sizeof(Scalar), sizeof input);
                } else {  // the last input of an odd number
                    input = 0;
                    std::memcpy(&input, rows[m] + k * sizeof(Scalar), sizeof(T));
                }
                for (int p = 0; p < PARTS; p++) sums[i][m][p] = multiply_add(sums[i][m][p], lanes[p], input);
            }
        };
        int64_t k = 0;
        for (; k + STEPS <= num_whole; k += STEPS)
            for (int i = 0; i < STEPS; i++) step(k + i, i);
        for (int i = 0; k < num_steps; k++, i++) step(k, i % STEPS);
        for (int m = 0; m < M; m++)
            for (int p = 0; p < PARTS; p++) {
                const sums_t total = (sums[0][m][p] + sums[1][m][p]) + (sums[2][m][p] + sums[3][m][p]);
                const sums_t scaled = total * scale;
                std::memcpy(to + (first + m) * width + p * WIDTH, &scaled, sizeof scaled);
            }
    }

    void expand(const Tile& tile, const Part& part, int64_t number, int64_t panel, const float* from) const {
        const T* weights = (const T*)part.b + panel * part.rank * LANES;
        const int64_t output = a.outputs[2 * number] + panel * LANES;
        const int64_t left = a.outputs[2 * number + 1] - panel * LANES;
        for (int64_t m = 0; m < tile.num_rows; m += MANY)
            expand_rows<MANY>(int(tile.num_rows - m < MANY ? tile.num_rows - m : MANY), tile, m, weights, part.rank, output, left, from);
    }

    template <int M>
    void expand_rows(int count, const Tile& tile, int64_t first, const T* weights, int64_t rank, int64_t output, int64_t left,
                     const float* from) const {
        if constexpr (M > 1)
            if (count < M) return expand_rows<M - 1>(count, tile, first, weights, rank, output, left, from);
        sums_t sums[M][PARTS] = {};
        for (int64_t r = 0; r < rank; r++) {
            sums_t lanes[PARTS];
            __builtin_prefetch(weights + (r + AHEAD * 4 / int64_t(sizeof(T))) * LANES, 0, 2);
            for (int p = 0; p < PARTS; p++) lanes[p] = load_sums(weights + r * LANES + p * WIDTH);
            for (int m = 0; m < M; m++) {
                const float input = from[(first + m) * width + r];
                for (int p = 0; p < PARTS; p++) sums[m][p] = multiply_add_once(lanes[p], input - sums_t{}, sums[m][p]);
            }
        }
        for (int m = 0; m < M; m++) {
            T* to = a.out + tile.rows[first + m] * a.num_outputs + output;
            if (left >= LANES)
                store(to, load(to) + load((const float*)sums[m]));
            else
                store_part(to, load_part(to, left) + load((const float*)sums[m]), left);
        }
    }
};

template <typename T>
void add_adapters(const AddAdapters<T>& a, const Team* team) {
    if (!a.num_tiles) return;
    together(team, threads_for(a.num_tiles * a.num_inputs * 256, a.num_threads), [&](const Team& team) { Product<T>(a, team).run(); });
}

}  // namespace

extern "C" void add_adapters_float32(const AddAdapters<float>& a, const Team* team) { add_adapters(a, team); }
extern "C" void add_adapters_bfloat16(const AddAdapters<bf16>& a, const Team* team) { add_adapters(a, team); }
