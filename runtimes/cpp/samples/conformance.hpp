// The declarations shared by the files of the conformance operator.
#pragma once

#include <arrow/builder.h>

#include <udo/operator.hpp>

// The state of a key, as any language may have left it: {"n": 3}.
struct Counted {
    std::int64_t n = 0;
    NLOHMANN_DEFINE_TYPE_INTRUSIVE(Counted, n)
};

// Adds to each row's key, keeps the sums as the keys' states, and returns the sum after each row.
template <class Added>
std::shared_ptr<arrow::Array> summed(udo::Keys& keys, Added added) {
    std::vector<Counted> sums;
    for (const auto& key : keys) sums.push_back(key.template state<Counted>().value_or(Counted()));
    arrow::Int64Builder n;
    udo::check(n.Reserve(static_cast<std::int64_t>(keys.rows.size())));
    std::int64_t row = 0;
    for (const auto key : keys.rows) n.UnsafeAppend(sums[key].n += added(row++));
    for (std::size_t key = 0; key < keys.size(); key++) keys[key].set_state(sums[key]);
    return udo::check(n.Finish());
}

// Runs a role for benchmarks; -1 if there is no such role.
int benchmarked(std::string_view role);
// Runs a role for tests of this SDK alone; -1 if there is no such role.
int faulty(std::string_view role);
