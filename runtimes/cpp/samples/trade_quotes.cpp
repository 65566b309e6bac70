// A keyed join of two inputs: each trade with the quote that was in force when it was made.
#include <algorithm>
#include <udo/operator.hpp>

using Number = std::optional<double>;

// The state of a symbol, as any language may have left it: waiting trades, and quotes that are still needed, by time.
struct State {
    std::vector<std::tuple<udo::Timestamp, Number>> trades;          // at, price
    std::vector<std::tuple<udo::Timestamp, Number, Number>> quotes;  // at, bid, ask
    NLOHMANN_DEFINE_TYPE_INTRUSIVE(State, trades, quotes)
};

template <class Row>
udo::Timestamp time_of(const Row& row) {
    return std::get<0>(row);
}

struct TradeQuotes : udo::Keyed, udo::Timed {
    void process(const udo::Event& event, udo::Key& key, udo::Context&) override {
        auto state = key.state<State>().value_or(State());
        const auto at = event.get<udo::Timestamp>("at");
        if (event.get<std::string_view>("input") == "quotes") {
            state.quotes.emplace_back(at, event.get<Number>("bid"), event.get<Number>("ask"));
            std::ranges::stable_sort(state.quotes, {}, time_of<decltype(state.quotes)::value_type>);
        } else {
            state.trades.emplace_back(at, event.get<Number>("price"));
            key.timer(at);
        }
        key.set_state(state);
    }

    // Called when event time has passed the trades of this moment in both inputs.
    void on_timer(udo::Timestamp at, udo::Key& key, udo::Context& ctx) override {
        auto [trades, quotes] = key.state<State>().value_or(State());
        const auto later = std::ranges::upper_bound(quotes, at, {}, time_of<decltype(quotes)::value_type>);
        const auto last = later == quotes.begin() ? later : later - 1;
        const auto [_, bid, ask] = last == later ? std::tuple(at, Number(), Number()) : *last;
        for (const auto& [time, price] : trades) {
            if (time == at) ctx.emit({{"symbol", key.value().get<std::string>()}, {"at", at}, {"price", price}, {"bid", bid}, {"ask", ask}});
        }
        std::erase_if(trades, [at](const auto& trade) { return time_of(trade) <= at; });
        quotes.erase(quotes.begin(), last);
        key.set_state(State{trades, quotes});
    }
};

int main() { return udo::run(TradeQuotes()); }
