import {spawnSync} from "node:child_process";
import {readFileSync, unlinkSync, writeFileSync} from "node:fs";
import {homedir, userInfo} from "node:os";
import {join} from "node:path";

function found(asked) {
  switch (asked) {
    case "user":
      return [userInfo().username, process.env.USER, process.env.LOGNAME].join(" ");
    case "home": {
      const kept = join(homedir(), `kept-${process.pid}`);
      writeFileSync(kept, "x");
      unlinkSync(kept);
      return "written";
    }
    case "hours":
      return String(-new Date().getTimezoneOffset() / 60);
    case "authorities":
      return String(readFileSync("/etc/ssl/certs/ca-certificates.crt", "latin1").split("BEGIN CERTIFICATE").length - 1);
    case "ends":
      return spawnSync("sleep", ["600"], {timeout: 100, killSignal: "SIGTERM"}).signal === "SIGTERM" ? "terminated" : "otherwise";
  }
  throw `as of a library: ${asked}`;
}

export const flagging = {
  process(event, ctx) {
    ctx.emit({answer: found(event.asked)});
  },
};
