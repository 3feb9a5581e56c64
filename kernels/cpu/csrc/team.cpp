// Start of a team's threads: those of the OpenMP runtime that torch has loaded, by the call that g++ makes of a
// `#pragma omp parallel`. Other compilers call a runtime of their own, which is not loaded. Without that call in the
// process, each op starts threads of its own.

#include "team.h"

#include <thread>
#include <vector>

extern "C" {
__attribute__((weak)) void GOMP_parallel(void (*function)(void*), void* data, unsigned num_threads, unsigned flags);
__attribute__((weak)) int omp_get_thread_num();
__attribute__((weak)) int omp_get_num_threads();
}

namespace {

struct Start {
    void (*call)(void* data, const Team& team);
    void* data;
    Meeting meeting;

    void run(int thread, int num_threads) { call(data, Team(meeting, thread, num_threads)); }
};

}  // namespace

void start_team(int64_t num_threads, void (*call)(void* data, const Team& team), void* data) {
    Start start;  // without {}, which would write all its memory before: 4 KiB for each op
    start.call = call, start.data = data;
    if (num_threads <= 1) return start.run(0, 1);
    const auto run = [](void* start) { ((Start*)start)->run(omp_get_thread_num(), omp_get_num_threads()); };
    if (GOMP_parallel) return GOMP_parallel(run, &start, unsigned(num_threads), 0);
    std::vector<std::thread> others;
    for (int thread = 1; thread < num_threads; thread++) others.emplace_back(&Start::run, &start, thread, int(num_threads));
    start.run(0, int(num_threads));
    for (std::thread& other : others) other.join();
}
