#pragma once

#include <pwd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>

#include <udo/operator.hpp>

struct Raised {};  // no std::exception

inline std::string found(std::string_view asked) {
    if (asked == "user") {
        const passwd* known = getpwuid(getuid());
        return std::string(known ? known->pw_name : "?") + " " + std::getenv("USER") + " " + std::getenv("LOGNAME");
    }
    if (asked == "home") {
        const std::string kept = std::string(std::getenv("HOME")) + "/kept-" + std::to_string(getpid());
        std::ofstream(kept) << "x";
        return unlink(kept.c_str()) == 0 ? "written" : "not written";
    }
    if (asked == "hours") {
        const std::time_t now = std::time(nullptr);
        return std::to_string(std::localtime(&now)->tm_gmtoff / 3600);
    }
    if (asked == "authorities") {
        std::ifstream file("/etc/ssl/certs/ca-certificates.crt");
        int count = 0;
        for (std::string line; std::getline(file, line);) count += line.find("BEGIN CERTIFICATE") != std::string::npos;
        return std::to_string(count);
    }
    if (asked == "ends") {
        const pid_t child = fork();
        if (child == 0) {
            execlp("sleep", "sleep", "600", nullptr);
            _exit(1);
        }
        int status = 0;
        kill(child, SIGTERM);
        waitpid(child, &status, 0);
        return WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM ? "terminated" : "otherwise";
    }
    throw Raised();
}

struct Flagging : udo::Events {
    void process(const udo::Event& event, udo::Context& ctx) override {
        ctx.emit({{"answer", found(event.get<std::string_view>("asked"))}});
    }
};
