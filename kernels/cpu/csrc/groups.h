// Walk over the weights of several experts: each multiplies its own rows, which are neighbours.
#pragma once

#include <algorithm>

#include "panels.h"

// Weight: struct in arguments.h of a product. A group's has neither rows nor results; its num_rows is 1, or 0 if the
// group has no such weight. Arguments: the struct of the grouped product.
template <typename Weight, typename Arguments>
class Groups {
   public:
    struct Panel {
        Weight weight;
        int64_t number;
    };

    explicit Groups(const Arguments& a)
        : a(a), weights((const Weight*)a.weights), num_panels((a.num_outputs + PANEL - 1) / PANEL) {}

    // Weight of a group that has one, with the rows and results of all groups.
    Weight any() const {
        int64_t group = 0;
        while (!weights[group].num_rows) group++;
        return weight(group);
    }

    // Number of rows of a row's group.
    int64_t num_beside(int64_t row) const {
        const int64_t* end = std::upper_bound(a.starts, a.starts + a.num_groups, row);
        return end[0] - end[-1];
    }

    // Calls product(weight, number, begin, end, next) for each panel of each group with rows [begin, end), shared out
    // dynamically. `next`: the Panel that the thread reads after this one, or this one.
    template <typename Product>
    void walk(const Team& team, Product product) const {
        int64_t* busy = (int64_t*)scratch<Busy>(a.num_groups * sizeof(int64_t));
        int64_t num_busy = 0;
        for (int64_t group = 0; group < a.num_groups; group++)
            if (a.starts[group] < a.starts[group + 1] && weights[group].num_rows) busy[num_busy++] = group;
        team.share_out(num_busy * num_panels, [&](int64_t item, int64_t next) {
            const int64_t group = busy[item / num_panels];
            product(weight(group), item % num_panels, a.starts[group], a.starts[group + 1],
                    Panel{weights[busy[next / num_panels]], next % num_panels});
        });
    }

   private:
    struct Busy;
    const Arguments& a;
    const Weight* weights;
    int64_t num_panels;

    Weight weight(int64_t group) const {
        Weight out = weights[group];
        out.x = a.x;
        out.out = a.out;
        out.num_rows = a.num_rows;
        out.out_row = a.out_row;
        return out;
    }
};
