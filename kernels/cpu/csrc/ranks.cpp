// Exchanges between the ranks of a tensor-parallel model, through shared memory.
//
// The first line of the memory has a number that ends all exchanges if it is not 0. The next lines have every rank's
// number of exchanges. Then come two areas of `capacity` bytes for each rank, used in turn: before a rank writes to an
// area again, it has seen that all others have read it. Sums are in the order of the ranks, so that every rank has
// equal bits, whichever rank is first and whatever else is in the batch.

#include <ctime>
#include <sched.h>

#include <algorithm>
#include <type_traits>

#include "arguments.h"

namespace {

constexpr int64_t LINE = 64, HEADER = 4096;
constexpr int PAUSES = 100;    // pauses before a waiting rank yields: with 2,000 the median was 115 us on busy cores, not 20
constexpr int YIELDS = 64;     // yields between two readings of the clock
constexpr int64_t SHORT_NS = 2000000;  // a longer wait sleeps between the readings
constexpr int64_t MOST_NS = 100000000; // most time counted between two readings: a stopped process has not waited
constexpr int64_t SMALL = 1 << 14;     // bytes that one thread sums faster than it would wake others

inline std::atomic<int64_t>& number(void* shared, int64_t line) {
    return *reinterpret_cast<std::atomic<int64_t>*>((char*)shared + line * LINE);
}

inline int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// Waits until `rank` has reached the exchange `turn`, or all exchanges have been ended, or the limit has passed (0:
// none).
int64_t wait_for(void* shared, int64_t rank, int64_t turn, int64_t limit_ns) {
    const std::atomic<int64_t>& reached = number(shared, 1 + rank);
    int64_t last = 0, waited = 0;
    for (int64_t i = 0; reached.load(std::memory_order_acquire) < turn; i++) {
        if (i < PAUSES) {
            relax();
            continue;
        }
        sched_yield();
        if (i % YIELDS) continue;
        if (int64_t reason = number(shared, 0).load()) return reason;
        const int64_t now = now_ns();
        if (last) waited += std::min(now - last, MOST_NS);
        last = now;
        if (limit_ns && waited > limit_ns) return 1 + rank;
        if (waited > SHORT_NS) {
            const timespec moment{0, 50000};
            nanosleep(&moment, nullptr);
        }
    }
    return 0;
}

// Exchanges through the areas, one after another, for all threads of a team.
template <typename Arguments>
class Exchange {
   public:
    Exchange(const Arguments& a, const Team& team) : a(a), team(team) {}

    char* area(int64_t rank) const {
        return (char*)a.shared + HEADER + ((turn & 1) * a.num_ranks + rank) * a.capacity;
    }

    // Calls copy(area of this rank), then read() once all ranks have copied.
    template <typename Copy, typename Read>
    void run(Copy copy, Read read) {
        turn = a.state[0] + 1;
        copy(area(a.rank));
        team.barrier();
        if (team.thread == 0) meet();
        team.barrier();
        read();
        team.barrier();
    }

   private:
    void meet() {
        a.state[0] = turn;
        number(a.shared, 1 + a.rank).store(turn, std::memory_order_release);
        for (int64_t rank = 0; rank < a.num_ranks && !a.state[1]; rank++)
            a.state[1] = wait_for(a.shared, rank, turn, a.limit_ns);
    }

    const Arguments& a;
    const Team& team;
    int64_t turn = 0;
};

// out[i] = Σ over ranks and their partials, for one row.
template <typename T, typename Partial>
void sum_row(T* out, int64_t width, int64_t num_ranks, int64_t num_partials, Partial partial) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        vec total = load(partial(0, 0) + i);
        for (int64_t p = 1; p < num_ranks * num_partials; p++)
            total += load(partial(p / num_partials, p % num_partials) + i);
        store_rounded(out + i, total);
    }
    for (; i < width; i++) {
        float total = to_float(partial(0, 0)[i]);
        for (int64_t p = 1; p < num_ranks * num_partials; p++)
            total += to_float(partial(p / num_partials, p % num_partials)[i]);
        store_one(out + i, total);
    }
}

template <typename T>
void sum_rows(const SumRanks<T>& a, const Team& team) {
    const int64_t row = a.num_partials * a.width, most = a.capacity / int64_t(row * sizeof(T));
    Exchange<SumRanks<T>> exchange(a, team);
    for (int64_t begin = 0; begin < a.num_rows; begin += most) {
        const int64_t count = std::min(most, a.num_rows - begin);
        exchange.run(
            [&](char* mine) {
                team.each(count, [&](int64_t i) {
                    std::memcpy(mine + i * row * sizeof(T), a.partials + (begin + i) * row, row * sizeof(T));
                });
            },
            [&] {
                team.each(count, [&](int64_t i) {
                    const auto partial = [&](int64_t rank, int64_t number) {
                        return (const T*)exchange.area(rank) + i * row + number * a.width;
                    };
                    sum_row(a.out + (begin + i) * a.width, a.width, a.num_ranks, a.num_partials, partial);
                });
            });
    }
}

void gather_rows(const GatherRanks& a, const Team& team) {
    const auto width = [&](int64_t rank) { return a.starts[rank + 1] - a.starts[rank]; };
    int64_t widest = 0;
    for (int64_t rank = 0; rank < a.num_ranks; rank++) widest = std::max(widest, width(rank));
    const int64_t most = a.capacity / widest, mine_bytes = width(a.rank), row = a.starts[a.num_ranks];
    Exchange<GatherRanks> exchange(a, team);
    for (int64_t begin = 0; begin < a.num_rows; begin += most) {
        const int64_t count = std::min(most, a.num_rows - begin);
        exchange.run(
            [&](char* mine) {
                if (team.thread == 0) std::memcpy(mine, a.x + begin * mine_bytes, count * mine_bytes);
            },
            [&] {
                if (!a.out) return;
                team.each(count * a.num_ranks, [&](int64_t item) {
                    const int64_t i = item / a.num_ranks, rank = item % a.num_ranks, bytes = width(rank);
                    const char* from = exchange.area(rank) + i * bytes;
                    std::memcpy(a.out + (begin + i) * row + a.starts[rank], from, bytes);
                });
            });
    }
}

// Runs the function on all threads, or on the first one only if there is little to do.
template <typename Arguments, typename Function>
void run(const Arguments& a, const Team* team, int64_t num_bytes, Function function) {
    if (num_bytes >= SMALL) return together(team, a.num_threads, [&](const Team& all) { function(a, all); });
    if (team && team->thread) return;
    Meeting alone;
    function(a, Team(alone, 0, 1));
}

template <typename T>
void sum_ranks(const SumRanks<T>& a, const Team* team) {
    run(a, team, a.num_rows * a.width * a.num_partials * sizeof(T), sum_rows<T>);
}

}  // namespace

SPLITFUSE_OP(sum_ranks, SumRanks)
extern "C" void gather_ranks(const GatherRanks& a, const Team* team) {
    run(a, team, a.num_rows * a.starts[a.num_ranks], gather_rows);
}
