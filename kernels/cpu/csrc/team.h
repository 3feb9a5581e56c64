// Team: threads that work on an op together, or on all ops of a plan. Every thread calls the op; `each`, `take` and
// `share_out` give a thread its part of the work.
//
// The threads belong to the OpenMP runtime that torch has loaded (team.cpp). Between the ops of a plan they meet at our own
// barrier, which spins for some 30 us and then sleeps, so that a thread which waits for one without a core gives up its
// own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "scratch.h"

#ifdef __linux__
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <thread>
#endif

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// State that the threads of a team share.
class Meeting {
   public:
    std::atomic<int64_t> next{0};  // first item that `take` has not assigned
    static constexpr int MOST_SHARES = 64;
    struct alignas(64) Taken {
        std::atomic<int64_t> count{0};
    } taken[MOST_SHARES];  // number of taken items of each thread's share, for `share_out`
    void* memory = nullptr;

    // Moves the calling thread to a free processor, if it shares its own with a thread of a smaller number.
    void part(int thread, int num_threads) {
#ifdef __linux__
        if (thread >= MOST_SHARES) return;
        const int here = sched_getcpu();
        if (processors[thread].load(std::memory_order_relaxed) != here + 1)
            processors[thread].store(here + 1, std::memory_order_relaxed);
        for (int other = 0; other < thread; other++)
            if (processors[other].load(std::memory_order_relaxed) == here + 1) return move(num_threads);
#endif
    }

    void wait(uint32_t num_threads) {
        const uint32_t now = phase.load(std::memory_order_acquire);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads) {
            arrived.store(0, std::memory_order_relaxed);
            next.store(0, std::memory_order_relaxed);
            for (uint32_t i = 0; i < num_threads && i < MOST_SHARES; i++) taken[i].count.store(0, std::memory_order_relaxed);
            phase.store(now + 1);
            if (num_asleep.load()) wake();
            return;
        }
        for (int i = 0; i < SPINS; i++) {
            if (phase.load(std::memory_order_acquire) != now) return;
            relax();
        }
        num_asleep.fetch_add(1);
        while (phase.load() == now) sleep(now);
        num_asleep.fetch_sub(1);
    }

   private:
    static constexpr int SPINS = 1000;
    alignas(64) std::atomic<uint32_t> phase{0};
    std::atomic<uint32_t> num_asleep{0};
    alignas(64) std::atomic<uint32_t> arrived{0};

#ifdef __linux__
    alignas(64) std::atomic<int> processors[MOST_SHARES] = {};  // of each thread, plus 1; 0: not known yet

    // At most every 10 ms. The thread may run on the same processors afterwards as before.
    void move(int num_threads) {
        static thread_local std::chrono::steady_clock::time_point next;
        const auto now = std::chrono::steady_clock::now();
        if (now < next) return;
        next = now + std::chrono::milliseconds(10);
        cpu_set_t allowed, one;
        if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
        cpu_set_t left = allowed;
        for (int i = 0; i < num_threads && i < MOST_SHARES; i++)
            if (const int taken = processors[i].load(std::memory_order_relaxed)) CPU_CLR(taken - 1, &left);
        for (int processor = 0; processor < CPU_SETSIZE; processor++)
            if (CPU_ISSET(processor, &left)) {
                CPU_ZERO(&one);
                CPU_SET(processor, &one);
                sched_setaffinity(0, sizeof one, &one);
                sched_setaffinity(0, sizeof allowed, &allowed);
                return;
            }
    }
    void sleep(uint32_t now) { syscall(SYS_futex, &phase, FUTEX_WAIT_PRIVATE, now, nullptr); }
    void wake() { syscall(SYS_futex, &phase, FUTEX_WAKE_PRIVATE, INT32_MAX); }
#else
    void sleep(uint32_t) { std::this_thread::yield(); }
    void wake() {}
#endif
};

class Team {
   public:
    const int thread, num_threads;

    Team(Meeting& meeting, int thread, int num_threads) : thread(thread), num_threads(num_threads), meeting(meeting) {}

    void barrier() const { meeting.wait(uint32_t(num_threads)); }

    // Lets no two threads share a processor while another one is free of them. Beside other processes the kernel leaves
    // them there for hundreds of milliseconds, and since each waits at every barrier for the other, a step takes up to
    // three times as long (16 tokens after 2,000 of SmolLM2, two cores, 17 -> 45 ms).
    void part() const { meeting.part(thread, num_threads); }

    // Calls f(item) for this thread's share of the items: neighbours, and equal in every call.
    template <typename Function>
    void each(int64_t count, Function f) const {
        const int64_t end = count * (thread + 1) / num_threads;
        for (int64_t item = count * thread / num_threads; item < end; item++) f(item);
    }

    // Calls f(item) for items taken one by one, for work of very uneven items. Once between two barriers.
    template <typename Function>
    void take(int64_t count, Function f) const {
        for (int64_t item; (item = meeting.next.fetch_add(1, std::memory_order_relaxed)) < count;) f(item);
    }

    // Calls f(item, next) for this thread's share of the items, like `each`, then for the rest of the next few threads'
    // shares. `next`: the item that most likely comes after this one, whose memory can be prefetched, or this one. Once
    // between two barriers. (With fixed shares, threads waited for each other for a tenth of a step of one row; taking
    // items one by one was slower, because a thread then reads scattered memory.)
    template <typename Function>
    void share_out(int64_t count, Function f) const {
        if (num_threads > Meeting::MOST_SHARES) return each(count, [&](int64_t item) { f(item, item); });
        for (int i = 0; i < num_threads && i <= MOST_HELPED; i++) {
            const int64_t of = (thread + i) % num_threads, end = count * (of + 1) / num_threads;
            std::atomic<int64_t>& taken = meeting.taken[of].count;
            for (int64_t item; (item = count * of / num_threads + taken.fetch_add(1, std::memory_order_relaxed)) < end;)
                f(item, i == 0 && item + 1 < end ? item + 1 : item);
        }
    }

    // Counter of all threads, number 0 to MOST_SHARES - 1; 0 after a barrier. Not beside `share_out`, which has the same ones.
    std::atomic<int64_t>& count(int64_t number) const { return meeting.taken[number].count; }

    // Memory of `bytes` shared by all threads until the op ends. A barrier.
    void* share(size_t bytes) const {
        if (thread == 0) meeting.memory = scratch<Shared>(bytes);
        barrier();
        return meeting.memory;
    }

   private:
    static constexpr int MOST_HELPED = 4;  // most helped threads: with many threads, reading their counters is slow
    struct Shared;
    Meeting& meeting;
};

// Calls call(data, team) on every thread of a new team.
void start_team(int64_t num_threads, void (*call)(void* data, const Team& team), void* data);

// First field of an op's arguments.
struct Op {
    int64_t num_threads;
};

// Calls f(team) on every thread of the given team, or of a new team of num_threads.
template <typename Function>
void together(const Team* given, int64_t num_threads, Function f) {
    if (given) return f(*given);
    start_team(num_threads, [](void* data, const Team& team) { (*(Function*)data)(team); }, &f);
}

// Calls f(item) for items that the threads of the given team share, or of a new team, of one thread unless `is_large`.
template <typename Function>
void each_item(const Op& op, const Team* given, int64_t count, bool is_large, Function f) {
    together(given, is_large ? op.num_threads : 1, [&](const Team& team) { team.each(count, f); });
}
