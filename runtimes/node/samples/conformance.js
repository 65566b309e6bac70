// The conformance operator (docs/operator-protocol.md, Conformance), in the role named by UDO_CONFORMANCE or by the last argument.
import {batchOf, run, values} from "udo-operator";

import {BENCHMARKED} from "./benchmarked.js";

const forever = new Promise(() => {});

function add(key, n) {
  const state = key.state ?? {};
  state.n = (state.n ?? 0n) + n;
  key.state = state;
  return state.n;
}

const onTimer = (at, key) => key.emit({k: key.value, n: add(key, 1n), at});

const ROLES = {
  ...BENCHMARKED,
  forward: {processBatch: (batch) => batch},
  each: {process: (event, ctx) => ctx.emit({...event})},
  events: {
    async process({do: what, n}, ctx) {
      switch (what) {
        case "none": return;
        case "twice": ctx.emit({n: n + 1n}); break;
        case "log": for (const level of ["debug", "info", "warn", "error"]) ctx.log[level](`log ${n}`); break;
        case "print": console.log(`print ${n}`); break;
        case "raise": throw new Error(`raise ${n}`);
        case "endless": for (;;) ctx.emit({n: n + 1n});
        case "wrong": ctx.emit({n: "text"}); return;
        case "sleep": await new Promise((resolve) => setTimeout(resolve, Number(n))); break;
        case "hang": await forever; break;
        case "exit": process.exit(3);
        case "abort": process.abort();
        case "memory": for (const all = []; ; ) all.push(Buffer.alloc(1 << 20, 1));
      }
      ctx.emit({n: n + 1n});
    },
    close: () => console.log("closed"),
  },
  keyed: {
    processKeyed({k, do: what, n, at}, key) {
      switch (what) {
        case "count": return key.emit({k, n: add(key, n), at: null});
        case "get": return key.emit({k, n: key.state?.n ?? null, at: null});
        case "copy": if (key.state) key.state = key.state; return;
        case "clear": key.state = undefined; return;
        case "timer": return key.timer(at);
        case "expire": return key.expire(at);
        case "watermark": return key.emit({k, n: null, at: key.ctx.watermark ?? null});
        case "raise":
          add(key, 1000n);
          key.timer(at);
          throw new Error(`raise ${n}`);
        default: throw new Error(what);
      }
    },
    onTimer,
    migrate: (old, from) => ({...old, n: (old.n ?? 0n) * 10n, from: BigInt(from)}),
  },
  keyed_batches: {
    processKeys(batch, keys, ctx) {
      const [added, what, at] = ["n", "do", "at"].map((name) => values(batch.getChild(name)));
      keys.forEach((key, row) => {
        if (what[row] === "timer") key.timer(at[row]);
        if (what[row] === "expire") key.expire(at[row]);
      });
      return batchOf(ctx.output, keys.map((key, row) => ({k: key.value, n: add(key, added[row]), at: null})));
    },
    onTimer,
  },
};

const role = process.env.UDO_CONFORMANCE ?? process.argv.at(-1);
if (!ROLES[role]) throw new Error(`no role of the conformance operator (UDO_CONFORMANCE): ${role}`);
run({
  open() {
    if (process.env.UDO_CONFORMANCE_OPEN === "fails") throw new Error("no model");
  },
  ...ROLES[role],
});
