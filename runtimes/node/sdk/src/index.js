/**
 * The SDK for operators of udo-spark in JavaScript: an object with one of these methods, passed to run().
 *
 *   processBatch(batch, ctx)       vectorised: an Arrow RecordBatch in, one with the manifest's output columns out, or undefined
 *   process(event, ctx)            event by event, each answered by any number of ctx.emit(row)
 *   processKeyed(event, key)       event by event, with the state of the event's key
 *   processKeys(batch, keys, ctx)  the same, vectorised: keys[i] is row i's
 *
 * and, as needed, open(ctx), close(), onTimer(at, key), which answers by key.emit(row), and migrate(old, fromVersion), which returns the
 * new state. Each may be async. An exception fails the method's frame with a stack trace; the process goes on. Batches and keys are valid until
 * the method returns. Answers that are returned or yielded event by event, or emitted by a vectorised method, are refused.
 *
 * Values: integers are BigInt, floating point numbers are numbers, in events as in states, so that 1 and 1.0 stay different values.
 */
export {run} from "./serve.js";
export {SchemaError, batchOf, values} from "./columns.js";
export {Decimal, Duration, Instant, LocalDate, LocalDateTime, LocalTime} from "./values.js";
