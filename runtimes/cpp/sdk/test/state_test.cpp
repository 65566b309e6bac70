// Golden states: each is read, and written again as the same value; and what a key, its state and its timers refuse. The argument is the
// file of golden states.
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <tuple>

#include <udo/operator.hpp>

using udo::json;

static int failed = 0;

static void same(const std::string& name, const json& have, const json& want) {
    if (have == want) return;
    failed++;
    std::cerr << name << ": expected " << want << ", got " << have << '\n';
}

static std::string bytes(const std::string& hex) {
    std::string all;
    for (std::size_t n = 0; n < hex.size(); n += 2) all += static_cast<char>(std::stoi(hex.substr(n, 2), nullptr, 16));
    return all;
}

// Checks that it throws an E that says this.
template <class E>
static void refused(const std::string& name, const std::string& says, const std::function<void()>& act) {
    try {
        act();
    } catch (const E& e) {
        if (std::string(e.what()).find(says) != std::string::npos) return;
        std::cerr << name << ": expected words " << says << ", got " << e.what() << '\n';
        failed++;
        return;
    } catch (const std::exception& e) {
        std::cerr << name << ": another exception: " << e.what() << '\n';
        failed++;
        return;
    }
    std::cerr << name << ": not refused\n";
    failed++;
}

enum class Level : std::uint8_t { LOW = 1, HIGH = 200 };
enum class Wide { NONE = -1, SOME = 7 };
enum class Named { NO, YES };
NLOHMANN_JSON_SERIALIZE_ENUM(Named, {{Named::NO, "no"}, {Named::YES, "yes"}})

template <class T>
struct Holder {
    T n{};
    NLOHMANN_DEFINE_TYPE_INTRUSIVE(Holder, n)
};

template <class T>
static T read(const json& n) {
    udo::Key key;
    key.set_state(json{{"n", n}});
    return key.state<Holder<T>>()->n;
}

template <class T>
static void beyond(const json& n, const std::string& says = "the state's entry \"n\": ") {
    refused<std::out_of_range>(n.dump() + " in a state", says, [&] { read<T>(n); });
}

static void numbers() {
    beyond<std::int64_t>(2.5, "\"n\": 2.5 does not fit an integer of 64 bits: declare a type that holds it");
    beyond<int>(2.5);
    beyond<int>(5'000'000'000);
    beyond<int>(-5'000'000'000);
    beyond<int>(true);
    beyond<unsigned>(-1);
    beyond<std::uint64_t>(-1);
    beyond<std::int64_t>(std::uint64_t{1} << 63);
    beyond<std::int8_t>(128);
    beyond<std::int64_t>(1e300);
    beyond<std::int64_t>(std::nan(""), "\"n\": nan does not fit");
    beyond<double>((std::int64_t{1} << 53) + 1);
    beyond<float>(1e300);
    beyond<std::vector<int>>({1, 2.5}, "entry \"n.1\": 2.5");
    beyond<std::map<std::string, Holder<int>>>({{"a", {{"n", 1}}}, {"b", {{"n", 2.5}}}}, "entry \"n.b.n\": 2.5");
    beyond<std::tuple<udo::Timestamp, std::optional<int>>>({udo::Timestamp(), 2.5}, "entry \"n.1\": 2.5");
    beyond<Level>(456, "\"n\": 456 does not fit an integer of 8 bits");  // would be HIGH
    beyond<Level>(1.5);
    beyond<Wide>(5'000'000'007);
    beyond<std::vector<Wide>>({7, -5'000'000'000}, "entry \"n.1\"");
    same("an enumeration", read<Level>(200) == Level::HIGH && read<Wide>(-1) == Wide::NONE, true);
    same("a named enumeration", read<Named>("yes") == Named::YES, true);
    same("an enumeration as it is stored", json{{"l", Level::HIGH}, {"n", Named::YES}}, json{{"l", 200}, {"n", "yes"}});
    same("the largest", read<std::uint64_t>(UINT64_MAX), UINT64_MAX);
    same("the smallest", read<std::int64_t>(INT64_MIN), INT64_MIN);
    same("a float of the same value", read<int>(2.0), 2);
    same("an integer of the same value", read<double>(7), 7.0);
    same("a rounded float", read<float>(0.1), 0.1F);
    same("infinity", read<double>(INFINITY), INFINITY);
    same("none", read<std::optional<int>>(nullptr), nullptr);
    same("a boolean", read<bool>(true), true);
    same("another value as a number", true, [] {
        try {
            read<int>("7");
        } catch (const json::type_error&) {
            return true;
        }
        return false;
    }());
}

static void times() {
    using namespace std::chrono;
    const udo::Timestamp end = sys_days(year(10'000) / 1 / 1), last = end - microseconds(1), first = sys_days(year(1) / 1 / 1);
    udo::Key key;
    const std::string says = "is beyond the years 1 to 9999";
    for (const auto at : {end, first - microseconds(1), udo::Timestamp::max(), udo::Timestamp::min()}) {
        const udo::LocalTime local(at.time_since_epoch());
        const auto day = floor<days>(at);
        refused<std::out_of_range>("a timer", "a timer at " + std::to_string(at.time_since_epoch().count()), [&] { key.timer(at); });
        refused<std::out_of_range>("an expiration", says, [&] { key.expire(at); });
        refused<std::out_of_range>("a time", says, [&] { json{{"at", at}}; });
        refused<std::out_of_range>("a time without a zone", says, [&] { json{{"at", local}}; });
        refused<std::out_of_range>("a date", says, [&] { json{{"at", day}}; });
    }
    for (const auto at : {first, last}) {
        key.timer(at), key.expire(at);
        const udo::LocalTime local(at.time_since_epoch());
        const json state{{"at", at}, {"local", local}, {"day", floor<days>(at)}};
        same("a time at the edge", udo::unpack(udo::pack(state)), state);
    }
}

static void texts() {
    udo::Key key;
    const std::string latin = "caf\xe9";
    const auto set = [&key](const json& state) { return [&key, state] { key.set_state(state); }; };
    refused<std::invalid_argument>("text", "text that is not UTF-8, at the entry \"s\": store it as", set({{"s", latin}}));
    refused<std::invalid_argument>("text in a list", "at the entry \"more.1.s\"", set({{"more", {1, {{"s", latin}}}}}));
    refused<std::invalid_argument>("a name", "text that is not UTF-8", set({{latin, 1}}));
    key.set_state(json{{"s", "café"}, {"b", json::binary({0xe9})}});
}

int main(int argc, char** argv) {
    numbers();
    times();
    texts();
    std::ifstream file(argv[argc - 1]);
    const auto golden = json::parse(file);
    for (const auto& each : golden) {
        const auto name = each["name"].get<std::string>();
        const auto packed = bytes(each["packed"].get<std::string>());
        const auto state = udo::unpack(packed);
        const auto& value = state["v"];
        same(name, udo::unpack(udo::pack(state)), state);
        if (!value.is_number_float()) same(name + ": bytes", udo::pack(state) == packed, true);  // some floats are written shorter
        if (name.starts_with("time without")) same(name, json(value.get<udo::LocalTime>()), value);
        else if (name.starts_with("time")) same(name, json(value.get<udo::Timestamp>()), value);
        if (name == "date") same(name, value.get<udo::Date>().time_since_epoch().count(), 0);
        if (name == "leap day") same(name, json(value.get<udo::Date>()), value);
        if (name == "decimal") same(name, value.get<udo::Decimal>().digits, "-12.50");
    }
    using Rows = std::vector<std::tuple<udo::Timestamp, std::optional<double>>>;
    const Rows rows{{udo::Timestamp(std::chrono::seconds(7)), 9.5}, {udo::Timestamp(), std::nullopt}};
    const auto back = udo::unpack(udo::pack({{"rows", rows}}))["rows"];
    same("an optional that has none", back[1][1], json());
    same("rows", back.get<Rows>() == rows, true);
    if (golden.empty()) return std::cerr << "no golden states\n", 1;
    return failed ? 1 : 0;
}
