// A recorded forward pass in one call: threads start once, not once for each op.

#include <cstring>

#include "arguments.h"
#include "panels.h"

namespace {

void patch(const RunPlan& plan) {
    for (int64_t i = 0; i < plan.num_patches; i++) {
        const int64_t* p = plan.patches + 4 * i;
        const int64_t value = plan.variables[p[1]] * p[2] + p[3];
        std::memcpy(plan.arguments + p[0], &value, sizeof value);
    }
}

void run(const RunPlan& plan, const Team& team) {
    typedef void (*Op)(const void* arguments, const Team* team);
    for (int64_t i = 0; i < plan.num_operations; i++) {
        const int64_t* operation = plan.operations + 2 * i;
        team.part();
        ((Op)operation[0])(plan.arguments + operation[1], &team);
        team.barrier();
    }
}

}  // namespace

extern "C" void run_plan(const RunPlan& plan, const Team* team) {
    patch(plan);
    together(team, threads_for(plan.num_products, plan.num_threads), [&](const Team& team) { run(plan, team); });
}
