// The roles timed by `python -m benchmarks languages`.
#include "conformance.hpp"

namespace {

constexpr double LIMIT = 500.0;

template <class Column, class Builder>
std::shared_ptr<arrow::Array> taken(const arrow::RecordBatch& batch, int n, const std::vector<std::int64_t>& rows) {
    const auto* values = static_cast<const Column&>(*batch.column(n)).raw_values();
    Builder kept;
    udo::check(kept.Reserve(static_cast<std::int64_t>(rows.size())));
    for (const auto row : rows) kept.UnsafeAppend(values[row]);
    return udo::check(kept.Finish());
}

struct Filter : udo::Batches {
    udo::Batch process(const udo::Batch& batch, udo::Context& ctx) override {
        const auto* amounts = static_cast<const arrow::DoubleArray&>(*batch->column(2)).raw_values();
        std::vector<std::int64_t> rows;
        for (std::int64_t row = 0; row < batch->num_rows(); row++) {
            if (amounts[row] > LIMIT) rows.push_back(row);
        }
        const auto whole = [&](int n) { return taken<arrow::Int64Array, arrow::Int64Builder>(*batch, n, rows); };
        const auto amount = taken<arrow::DoubleArray, arrow::DoubleBuilder>(*batch, 2, rows);
        return arrow::RecordBatch::Make(ctx.output, static_cast<std::int64_t>(rows.size()), {whole(0), whole(1), amount, whole(3)});
    }
};

struct FilterEach : udo::Events {
    void process(const udo::Event& event, udo::Context& ctx) override {
        const auto amount = event.get<double>("amount");
        if (amount <= LIMIT) return;
        ctx.emit({{"id", event.value("id")}, {"card", event.value("card")}, {"amount", amount}, {"at", event.value("at")}});
    }
};

struct Tally : udo::Keyed {
    void process(const udo::Event& event, udo::Key& key, udo::Context& ctx) override {
        auto counted = key.state<Counted>().value_or(Counted());
        counted.n++;
        key.set_state(counted);
        ctx.emit({{"id", event.value("id")}, {"card", event.value("card")}, {"n", counted.n}});
    }
};

struct TallyBatches : udo::KeyedBatches {
    udo::Batch process(const udo::Batch& batch, udo::Keys& keys, udo::Context& ctx) override {
        const auto n = summed(keys, [](std::int64_t) { return 1; });
        return arrow::RecordBatch::Make(ctx.output, batch->num_rows(), {batch->column(0), batch->column(1), n});
    }
};

}  // namespace

int benchmarked(std::string_view role) {
    if (role == "filter") return udo::run(Filter());
    if (role == "filter_each") return udo::run(FilterEach());
    if (role == "tally") return udo::run(Tally());
    if (role == "tally_batches") return udo::run(TallyBatches());
    return -1;
}
