// The C++ SDK's conformance operator: docs/operator-protocol.md describes the roles, and `udo conformance` tests them.
#include "conformance.hpp"

#include <cstdlib>
#include <iostream>
#include <thread>

using std::string;

// Opening fails if the environment asks for it.
template <class Kind>
struct Opened : Kind {
    void open(const udo::Context&) override {
        const char* wanted = std::getenv("UDO_CONFORMANCE_OPEN");
        if (wanted && string(wanted) == "fails") throw std::runtime_error("no model");
    }
};

struct Forward : Opened<udo::Batches> {
    udo::Batch process(const udo::Batch& batch, udo::Context&) override { return batch; }
};

struct Each : Opened<udo::Events> {
    void process(const udo::Event& event, udo::Context& ctx) override {
        std::vector<udo::Field> row;
        for (const auto& field : ctx.input->fields()) row.emplace_back(field->name(), event.value(field->name()));
        ctx.emit(row);
    }
};

struct Doing : Opened<udo::Events> {
    void process(const udo::Event& event, udo::Context& ctx) override {
        const auto n = event.get<std::int64_t>("n");
        const auto what = event.get<std::string_view>("do");
        if (what == "none") return;
        if (what == "twice") ctx.emit({{"n", n + 1}});
        if (what == "log") {
            const auto line = "log " + std::to_string(n);
            ctx.log.debug(line), ctx.log.info(line), ctx.log.warning(line), ctx.log.error(line);
        }
        if (what == "print") std::cout << "print " << n << '\n';
        if (what == "raise") throw std::runtime_error("raise " + std::to_string(n));
        while (what == "endless") ctx.emit({{"n", n + 1}});
        if (what == "wrong") return ctx.emit({{"n", "text"}});
        if (what == "sleep") std::this_thread::sleep_for(std::chrono::milliseconds(n));
        if (what == "hang") std::this_thread::sleep_for(std::chrono::hours(1000));
        if (what == "exit") std::_Exit(3);
        if (what == "abort") std::abort();
        if (what == "memory") {
            for (std::vector<std::vector<char>> taken;;) taken.emplace_back(1 << 24, 'x');
        }
        ctx.emit({{"n", n + 1}});
    }

    void close() override { std::cout << "closed" << std::endl; }
};

// Adds to n in the key's state, and leaves the rest.
std::int64_t add(udo::Key& key, std::int64_t n) {
    auto state = key.state().value_or(udo::json::object());
    const auto sum = state.value("n", std::int64_t{0}) + n;
    state["n"] = sum;
    key.set_state(state);
    return sum;
}

struct Fires : udo::Timed {
    void on_timer(udo::Timestamp at, udo::Key& key, udo::Context& ctx) override {
        const auto sum = add(key, 1);
        ctx.emit({{"k", key.value().get<string>()}, {"n", sum}, {"at", at}});
    }
};

struct Stateful : Opened<udo::Keyed>, Fires, udo::Migrating {
    void process(const udo::Event& event, udo::Key& key, udo::Context& ctx) override {
        const auto what = event.get<std::string_view>("do");
        std::optional<std::int64_t> n;
        std::optional<udo::Timestamp> at;
        if (what == "count") {
            n = add(key, event.get<std::int64_t>("n"));
        } else if (what == "get") {
            if (const auto state = key.state<Counted>()) n = state->n;
        } else if (what == "copy") {
            if (const auto state = key.state()) key.set_state(*state);
            return;
        } else if (what == "clear") {
            return key.clear();
        } else if (what == "timer") {
            return key.timer(event.get<udo::Timestamp>("at"));
        } else if (what == "expire") {
            return key.expire(event.get<udo::Timestamp>("at"));
        } else if (what == "watermark") {
            at = ctx.watermark;
        } else if (what == "raise") {
            add(key, 1000);
            key.timer(event.get<udo::Timestamp>("at"));
            throw std::runtime_error("raise " + std::to_string(event.get<std::int64_t>("n")));
        } else {
            throw std::invalid_argument(string(what));
        }
        ctx.emit({{"k", event.value("k")}, {"n", n}, {"at", at}});
    }

    udo::json migrate(udo::json old, unsigned from) override {
        old["n"] = old.value("n", std::int64_t{0}) * 10;
        old["from"] = from;
        return old;
    }
};

struct Vectorised : Opened<udo::KeyedBatches>, Fires {
    udo::Batch process(const udo::Batch& batch, udo::Keys& keys, udo::Context& ctx) override {
        const auto& added = static_cast<const arrow::Int64Array&>(*batch->column(2));
        const auto n = summed(keys, [&](std::int64_t row) { return added.Value(row); });
        const auto& what = static_cast<const arrow::StringArray&>(*batch->column(1));
        const auto& times = static_cast<const arrow::TimestampArray&>(*batch->column(3));
        for (std::int64_t row = 0; row < batch->num_rows(); row++) {
            auto& key = keys[keys.rows[row]];
            const udo::Timestamp at{std::chrono::microseconds(times.Value(row))};
            if (what.GetView(row) == "timer") key.timer(at);
            if (what.GetView(row) == "expire") key.expire(at);
        }
        const auto at = udo::check(arrow::MakeArrayOfNull(ctx.output->field(2)->type(), batch->num_rows()));
        return arrow::RecordBatch::Make(ctx.output, batch->num_rows(), {batch->column(0), n, at});
    }
};

int main(int argc, char** argv) {
    const char* named = std::getenv("UDO_CONFORMANCE");
    const std::string_view role = named ? named : argv[argc - 1];
    if (role == "forward") return udo::run(Forward());
    if (role == "each") return udo::run(Each());
    if (role == "events") return udo::run(Doing());
    if (role == "keyed") return udo::run(Stateful());
    if (role == "keyed_batches") return udo::run(Vectorised());
    int ended = benchmarked(role);
    if (ended < 0) ended = faulty(role);
    if (ended < 0) std::cerr << "no role of the conformance operator (UDO_CONFORMANCE): " << role << '\n';
    return ended < 0 ? 2 : ended;
}
