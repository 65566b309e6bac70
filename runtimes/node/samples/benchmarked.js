// The roles timed by `python -m benchmarks languages`.
import {RecordBatch, Struct, makeData} from "apache-arrow";

const LIMIT = 500;

/** A batch of columns without nulls, as typed arrays. */
function batchOfColumns(schema, columns) {
  const length = columns[0].length;
  const children = schema.fields.map(({type}, n) => makeData({type, length, nullCount: 0, data: columns[n]}));
  return new RecordBatch(schema, makeData({type: new Struct(schema.fields), length, nullCount: 0, children}));
}

export const BENCHMARKED = {
  filter: {
    processBatch(batch, ctx) {
      const amounts = batch.getChild("amount").toArray(), kept = [];
      for (let row = 0; row < amounts.length; row++) if (amounts[row] > LIMIT) kept.push(row);
      const columns = ctx.output.fields.map(({name}) => {
        const from = batch.getChild(name).toArray(), to = new from.constructor(kept.length);
        for (let n = 0; n < kept.length; n++) to[n] = from[kept[n]];
        return to;
      });
      return batchOfColumns(ctx.output, columns);
    },
  },
  filter_each: {
    process(event, ctx) {
      if (event.amount > LIMIT) ctx.emit(event);
    },
  },
  tally: {
    processKeyed({id, card}, key) {
      const n = (key.state?.n ?? 0n) + 1n;
      key.state = {n};
      key.emit({id, card, n});
    },
  },
  tally_batches: {
    processKeys(batch, keys, ctx) {
      const counts = new Map(), numbers = new BigInt64Array(keys.length);
      keys.forEach((key, row) => {
        const n = (counts.get(key) ?? key.state?.n ?? 0n) + 1n;
        counts.set(key, n);
        numbers[row] = n;
      });
      for (const [key, n] of counts) key.state = {n};
      return batchOfColumns(ctx.output, [batch.getChild("id").toArray(), batch.getChild("card").toArray(), numbers]);
    },
  },
};
