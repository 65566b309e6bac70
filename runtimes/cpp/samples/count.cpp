// Answers each event with the number of events of its key so far.
#include <udo/operator.hpp>

// The state of a key, as any language may have left it: {"n": 3}.
struct State {
    std::int64_t n = 0;
    NLOHMANN_DEFINE_TYPE_INTRUSIVE(State, n)
};

struct Count : udo::Keyed {
    void process(const udo::Event& event, udo::Key& key, udo::Context& ctx) override {
        auto state = key.state<State>().value_or(State());
        state.n++;
        key.set_state(state);
        ctx.emit({{"id", event.value("id")}, {"k", event.value("k")}, {"n", state.n}});
    }
};

int main() { return udo::run(Count()); }
