// Golden states: each is read, and written again as the same value. The argument is the file of golden states.
#include <fstream>
#include <iostream>
#include <string>
#include <tuple>

#include <udo/state.hpp>

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

int main(int argc, char** argv) {
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
