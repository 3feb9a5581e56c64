// Adapters: out += scale · B(A x), for tiles of rows with one adapter (Hu et al. 2021, LoRA).
//
// Layout (made by adapters.py): A in panels of LANES ranks, B in panels of PANEL outputs, step by step, a step being one
// input of the product, or for bfloat16 two. A x is scaled and rounded to the values' type, as a model in bfloat16 with
// adapters of its own would do. Every sum has one order: A's steps go to STEPS sums in turn, B's are added in the order
// of the ranks. So neither the other rows nor the tiles change a row's bits.

#include "arguments.h"
#include "dense_panels.h"

namespace {

constexpr int STEPS = 2;                   // sums of a product with A, because one would wait for each addition
constexpr int PARTS = LANES / WIDTH;       // registers of a panel of A
constexpr int MANY = PARTS == 1 ? 8 : 2;   // most rows of a pass: their sums and a step's weights fill the registers
constexpr int64_t TILE = 16;
// Lines of memory that are fetched ahead, because a tile of few rows waits for memory: eight adapters of SmolLM2 took
// 6.3 ms of a core with 64, 8.4 with 32.
constexpr int64_t AHEAD = 64;
constexpr int64_t OUTPUTS_AHEAD = 4 * PANEL;

struct Tile {
    const struct Part* parts;
    int64_t num_rows, rows[TILE];
};
struct Part {  // of an adapter
    const void *a, *b;
    int64_t rank;  // 0: nothing is added
    double scale;
};
struct Hidden;

inline int64_t ceil_div(int64_t count, int64_t size) { return (count + size - 1) / size; }

inline void fetch_ahead(const void* weights) { __builtin_prefetch((const char*)weights + AHEAD * 64, 0, 2); }

template <typename T>
class Product {
    typedef ScalarOf<T> Scalar;
    typedef typename Lanes<Scalar>::type lanes_t;
    static constexpr int64_t PACK = sizeof(Scalar) / sizeof(T);

   public:
    Product(const AddAdapters<T>& a, const Team& team) : a(a), tiles((const Tile*)a.tiles), team(team) {
        for (int64_t tile = 0; tile < a.num_tiles; tile++) {
            const int64_t own = start_of(tiles[tile], a.num_parts);
            if (own > width) width = own;
            num_rows += tiles[tile].num_rows;
        }
    }

    void run() {
        if (!width) return;
        if (a.num_tiles < team.num_threads)
            run_together();
        else
            run_apart();
    }

   private:
    const AddAdapters<T>& a;
    const Tile* tiles;
    const Team& team;
    int64_t width = 0, num_rows = 0;

    // Each thread has its rows, and nobody waits.
    void run_apart() const {
        const int64_t begin = num_rows * team.thread / team.num_threads, end = num_rows * (team.thread + 1) / team.num_threads;
        T* hidden = (T*)scratch<Hidden>(TILE * width * sizeof(T));
        int64_t before = 0;
        for (int64_t number = 0; number < a.num_tiles; before += tiles[number++].num_rows) {
            const Tile& tile = tiles[number];
            const int64_t first = begin > before ? begin - before : 0;
            const int64_t last = end - before < tile.num_rows ? end - before : tile.num_rows;
            if (first >= last) continue;
            each_part(tile, [&](const Part& part, const int64_t*, int64_t start) {
                for (int64_t panel = 0; panel < ceil_div(part.rank, LANES); panel++)
                    shrink(tile, first, last, part, panel, hidden + start);
            });
            each_part(tile, [&](const Part& part, const int64_t* outputs, int64_t start) {
                for (int64_t panel = 0; panel < ceil_div(outputs[1], PANEL); panel++)
                    expand(tile, first, last, part, panel, outputs, hidden + start);
            });
        }
    }

    // The threads share out the panels.
    void run_together() const {
        T* hidden = (T*)team.share(a.num_tiles * TILE * width * sizeof(T));
        int64_t turn = 0;
        const auto is_mine = [&] { return turn++ % team.num_threads == team.thread; };
        for (int64_t tile = 0; tile < a.num_tiles; tile++)
            each_part(tiles[tile], [&](const Part& part, const int64_t*, int64_t start) {
                for (int64_t panel = 0; panel < ceil_div(part.rank, LANES); panel++)
                    passes(0, tiles[tile].num_rows, [&](int64_t row, int count) {
                        if (is_mine()) shrink(tiles[tile], row, row + count, part, panel, hidden + tile * TILE * width + start);
                    });
            });
        team.barrier();
        turn = 0;
        for (int64_t tile = 0; tile < a.num_tiles; tile++)
            each_part(tiles[tile], [&](const Part& part, const int64_t* outputs, int64_t start) {
                for (int64_t panel = 0; panel < ceil_div(outputs[1], PANEL); panel++)
                    if ((outputs[0] + panel * PANEL) * team.num_threads / a.num_outputs == team.thread)
                        expand(tiles[tile], 0, tiles[tile].num_rows, part, panel, outputs, hidden + tile * TILE * width + start);
            });
    }

    // Place of a part's hidden values in those of a row.
    int64_t start_of(const Tile& tile, int64_t number) const {
        int64_t count = 0;
        for (int64_t part = 0; part < number; part++) count += ceil_div(tile.parts[a.first_part + part].rank, LANES) * LANES;
        return count;
    }

    // Calls f(part, its outputs, start of its hidden values) for each part that the tile's adapter has.
    template <typename Function>
    void each_part(const Tile& tile, Function f) const {
        for (int64_t number = 0; number < a.num_parts; number++) {
            const Part& part = tile.parts[a.first_part + number];
            if (part.rank) f(part, a.outputs + 2 * number, start_of(tile, number));
        }
    }

    // Calls f(row, count) for passes of nearly equal size over rows [first, last).
    template <typename Function>
    static void passes(int64_t first, int64_t last, Function f) {
        for (int64_t left = ceil_div(last - first, MANY); left; left--) {
            const int count = int((last - first) / left);
            f(first, count);
            first += count;
        }
    }

    void shrink(const Tile& tile, int64_t first, int64_t last, const Part& part, int64_t panel, T* to) const {
        const Scalar* weights = (const Scalar*)part.a + panel * ceil_div(a.num_inputs, PACK) * LANES;
        passes(first, last, [&](int64_t row, int count) {
            shrink_rows<MANY>(count, tile, row, weights, float(part.scale), to + panel * LANES);
        });
    }

    template <int M>
    void shrink_rows(int count, const Tile& tile, int64_t first, const Scalar* weights, float scale, T* to) const {
        if constexpr (M > 1)
            if (count < M) return shrink_rows<M - 1>(count, tile, first, weights, scale, to);
        const char* rows[M];
        for (int m = 0; m < M; m++) rows[m] = (const char*)(a.x + tile.rows[first + m] * a.num_inputs);
        sums_t sums[STEPS][M][PARTS] = {};
        const auto step = [&](int64_t k, int i, size_t num_bytes) __attribute__((always_inline)) {
            lanes_t lanes[PARTS];
            fetch_ahead(weights + k * LANES);
            for (int p = 0; p < PARTS; p++) lanes[p] = load_vector<lanes_t>(weights + k * LANES + p * WIDTH);
            for (int m = 0; m < M; m++) {
                Scalar input = 0;
                std::memcpy(&input, rows[m] + k * sizeof input, num_bytes);
                for (int p = 0; p < PARTS; p++) sums[i][m][p] = multiply_add(sums[i][m][p], lanes[p], input);
            }
        };
        const int64_t num_whole = a.num_inputs / PACK;
        int64_t k = 0;
        for (; k + STEPS <= num_whole; k += STEPS)
            for (int i = 0; i < STEPS; i++) step(k + i, i, sizeof(Scalar));
        if (k < num_whole) step(k++, 0, sizeof(Scalar));
        if (num_whole * PACK < a.num_inputs) step(num_whole, num_whole % STEPS, sizeof(T));  // the last input of an odd number
        for (int m = 0; m < M; m++)
            for (int p = 0; p < PARTS; p++) {
                const sums_t total = (sums[0][m][p] + sums[1][m][p]) * scale;
                float values[WIDTH];
                std::memcpy(values, &total, sizeof total);
                T* here = to + (first + m) * width + p * WIDTH;
                if constexpr (PARTS == 1)
                    store(here, load(values));
                else
                    for (int i = 0; i < WIDTH; i++) store_one(here + i, values[i]);
            }
    }

    void expand(const Tile& tile, int64_t first, int64_t last, const Part& part, int64_t panel, const int64_t* outputs,
                const T* from) const {
        const int64_t num_steps = ceil_div(part.rank, PACK), output = panel * PANEL;
        const Scalar* weights = (const Scalar*)part.b + panel * num_steps * PANEL;
        passes(first, last, [&](int64_t row, int count) {
            expand_rows<MANY>(count, tile, row, weights, num_steps, outputs[0] + output, outputs[1] - output, from);
        });
    }

    template <int M>
    void expand_rows(int count, const Tile& tile, int64_t first, const Scalar* weights, int64_t num_steps, int64_t output,
                     int64_t left, const T* from) const {
        if constexpr (M > 1)
            if (count < M) return expand_rows<M - 1>(count, tile, first, weights, num_steps, output, left, from);
        T *to[M], rest[M][PANEL];
        for (int m = 0; m < M; m++) {
            to[m] = a.out + tile.rows[first + m] * a.num_outputs + output;
            // Another thread has written most of them, so they are fetched, too.
            __builtin_prefetch(to[m] + OUTPUTS_AHEAD, 1, 3);
            if (left < PANEL) to[m] = (T*)std::memcpy(rest[m], to[m], left * sizeof(T));
        }
        sums_t sums[M][V];
        for (int m = 0; m < M; m++)
            for (int i = 0; i < PANEL; i += LANES) {
                const vec values = load(to[m] + i);
                store((float*)sums[m] + i, values);
            }
        for (int64_t k = 0; k < num_steps; k++) {
            lanes_t lanes[V];
            for (int i = 0; i < PANEL / LANES; i++) fetch_ahead(weights + k * PANEL + i * LANES);
            for (int v = 0; v < V; v++) lanes[v] = load_vector<lanes_t>(weights + k * PANEL + v * WIDTH);
            for (int m = 0; m < M; m++) {
                Scalar input;
                std::memcpy(&input, (const char*)(from + (first + m) * width) + k * sizeof input, sizeof input);
                for (int v = 0; v < V; v++) sums[m][v] = multiply_add(sums[m][v], lanes[v], input);
            }
        }
        for (int m = 0; m < M; m++) {
            for (int i = 0; i < PANEL; i += LANES) store(to[m] + i, load((const float*)sums[m] + i));
            if (left < PANEL) std::memcpy(a.out + tile.rows[first + m] * a.num_outputs + output, rest[m], left * sizeof(T));
        }
    }
};

template <typename T>
void add_adapters(const AddAdapters<T>& a, const Team* team) {
    if (!a.num_tiles) return;
    together(team, threads_for(a.num_tiles * a.num_inputs * 256, a.num_threads), [&](const Team& team) { Product<T>(a, team).run(); });
}

}  // namespace

SPLITFUSE_OP(add_adapters, AddAdapters)
