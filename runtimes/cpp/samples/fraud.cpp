// Flags card payments of an unusual amount, event by event.
#include <udo/operator.hpp>

constexpr double LIMIT = 100.0;

struct Fraud : udo::Events {
    void process(const udo::Event& event, udo::Context& ctx) override {
        const auto value = event.get<std::optional<double>>("value");
        ctx.emit({{"id", event.value("id")}, {"flagged", value && *value > LIMIT}});
    }
};

int main() { return udo::run(Fraud()); }
