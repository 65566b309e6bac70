// Answers with the number of events in a key's session, once the key has had none for half a minute of event time.
#include <udo/operator.hpp>

constexpr std::chrono::seconds GAP(30);

struct Session {
    std::int64_t n = 0;
    udo::Timestamp last;
    NLOHMANN_DEFINE_TYPE_INTRUSIVE(Session, n, last)
};

struct Sessionise : udo::Keyed, udo::Timed {
    void process(const udo::Event& event, udo::Key& key, udo::Context&) override {
        const auto at = event.get<udo::Timestamp>("t");
        auto session = key.state<Session>().value_or(Session{0, udo::Timestamp::min()});
        session.n++;
        if (at > session.last) {
            session.last = at;
            key.timer(at + GAP);
        }
        key.set_state(session);
    }

    void on_timer(udo::Timestamp at, udo::Key& key, udo::Context& ctx) override {
        const auto session = key.state<Session>();
        if (!session || at < session->last + GAP) return;  // an event has come since
        ctx.emit({{"k", key.value().get<std::string>()}, {"n", session->n}, {"ended", session->last}});
        key.clear();
    }
};

int main() { return udo::run(Sessionise()); }
