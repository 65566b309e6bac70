// A pattern over two inputs: news, and within a minute the first trade whose price has moved by 2 % since the last one before it.
#include <cmath>
#include <udo/operator.hpp>

constexpr std::chrono::minutes WITHIN(1);
constexpr double MOVE = 0.02;

// The state of a symbol, as any language may have left it.
struct State {
    std::vector<std::tuple<udo::Timestamp, std::string, udo::json>> waiting;          // events: at, input, headline or price
    std::vector<std::tuple<udo::Timestamp, std::string, std::optional<double>>> news;  // no large move yet: at, headline, price before it
    std::optional<double> price;                                                       // the last one; none before the first trade
    NLOHMANN_DEFINE_TYPE_INTRUSIVE(State, waiting, news, price)
};

struct NewsMoves : udo::Keyed, udo::Timed {
    void process(const udo::Event& event, udo::Key& key, udo::Context&) override {
        const std::string input(event.get<std::string_view>("input"));
        const auto headline = event.get<std::optional<std::string_view>>("headline").value_or("");
        const auto price = event.get<std::optional<double>>("price").value_or(0);
        if (headline.empty() && price == 0) return;  // it carries no information
        auto state = key.state<State>().value_or(State());
        const auto at = event.get<udo::Timestamp>("at");
        state.waiting.emplace_back(at, input, input == "news" ? udo::json(headline) : udo::json(price));
        key.timer(at);
        key.set_state(state);
    }

    // Processes the events of this moment: news first, then the trades, in order of arrival.
    void on_timer(udo::Timestamp at, udo::Key& key, udo::Context& ctx) override {
        auto [waiting, news, price] = key.state<State>().value_or(State());
        std::erase_if(news, [at](const auto& one) { return at - std::get<0>(one) > WITHIN; });
        std::vector<double> prices;
        for (const auto& [time, input, said] : waiting) {
            if (time == at && input == "news") news.emplace_back(at, said.get<std::string>(), price);
            if (time == at && input == "trades") prices.push_back(said.get<double>());
        }
        for (const double now : prices) {
            std::erase_if(news, [&](const auto& one) {
                const auto& [time, headline, before] = one;
                const bool moved = before && std::abs(now - *before) >= MOVE * *before;
                if (moved) {
                    const double change = (now - *before) / *before;
                    ctx.emit({{"symbol", key.value().get<std::string>()}, {"at", at}, {"headline", headline}, {"change", change}});
                }
                return moved;
            });
            price = now;
        }
        std::erase_if(waiting, [at](const auto& event) { return std::get<0>(event) <= at; });
        key.set_state(State{waiting, news, price});
    }
};

int main() { return udo::run(NewsMoves()); }
