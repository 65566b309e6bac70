// Package operator is the Go SDK for operators of udo-spark. An operator is a type with one of these methods, which main passes to Run:
//
//	ProcessBatch(batch arrow.RecordBatch, ctx *Context) (arrow.RecordBatch, error)   vectorised
//	Process(event Event, ctx *Context) error                                         event by event
//	ProcessKeyed(event Event, ctx *Key) error                                        event by event, with the state of the event's key
//	ProcessKeys(batch arrow.RecordBatch, keys []*Key, ctx *Context) (arrow.RecordBatch, error)   the same, vectorised: keys[i] is row i's
//
// and optionally Open, Close, OnTimer and Migrate. An error or a panic fails the method's frame with a stack trace; the process goes on.
// Records and events are valid until the method returns.
package operator

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
)

// Batches is a vectorised operator. The answer has the manifest's output columns and any number of rows; nil means no rows.
type Batches interface {
	ProcessBatch(batch arrow.RecordBatch, ctx *Context) (arrow.RecordBatch, error)
}

// Events is an operator that works event by event and answers each with any number of calls to ctx.Emit.
type Events interface {
	Process(event Event, ctx *Context) error
}

// Keyed works event by event, with the state of the event's key. The events of a key come in order.
type Keyed interface {
	ProcessKeyed(event Event, ctx *Key) error
}

// KeyedBatches is a vectorised keyed operator: keys[i] is the key of row i; events of one key share one Key.
type KeyedBatches interface {
	ProcessKeys(batch arrow.RecordBatch, keys []*Key, ctx *Context) (arrow.RecordBatch, error)
}

// Timed is a keyed operator with timers. OnTimer is called at the end of the first epoch whose watermark has reached `at`.
type Timed interface {
	OnTimer(at time.Time, ctx *Key) error
}

// Migrating converts the state of a version with another state_version (migrates_from in operator.toml).
type Migrating interface {
	Migrate(old State, from int) (State, error)
}

// Opener loads what the operator needs, once per process. Closer releases it when the process ends normally.
type Opener interface{ Open(ctx *Context) error }

// Closer is called once when the process ends normally.
type Closer interface{ Close() error }

// State is the state of a key as a map; a struct with `msgpack` tags works as well.
type State = map[string]any

// Row is one answered event: the manifest's output columns. Values are Go's numbers, bool, string, []byte, time.Time, Decimal, Date,
// LocalTime, nil, slices and maps of these, or a result of Event.Value. A value that its column cannot hold exactly fails the event, with a
// SchemaError: a number that is out of range, a decimal with too many digits, text that is not UTF-8, a number for text. An integer may be
// given to a column of floats or decimals; a float to neither integers nor decimals.
type Row map[string]any

// SchemaError says that an answer does not fit the output schema.
type SchemaError struct{ Reason string }

func (e SchemaError) Error() string { return e.Reason }

// Context is the operator's context. Environment values and secrets are in the process's environment.
type Context struct {
	Operator, Version, Instance string
	Input, Output               *arrow.Schema
	Directory                   string       // of the files given at deployment
	Log                         *slog.Logger // shown by `udo logs`
	watermark                   *int64
	rows                        *builder
}

// Emit adds an event to the answer of Process, ProcessKeyed or OnTimer, the only methods that may call it.
func (c *Context) Emit(row Row) { c.rows.append(row) }

// Watermark returns the event time up to which all events have been seen; false until it is known.
func (c *Context) Watermark() (time.Time, bool) {
	if c.watermark == nil {
		return time.Time{}, false
	}
	return time.UnixMicro(*c.watermark).UTC(), true
}

// Run serves the operator, and returns when the engine stops it. Programs call it from main.
func Run(op any) {
	path := os.Getenv("UDO_OPERATOR_SOCKET")
	if path == "" {
		fmt.Fprintln(os.Stderr, "this program is an operator: try it with `udo test DIR` (UDO_OPERATOR_SOCKET is not set)")
		os.Exit(2)
	}
	if err := serve(op, path); err != nil {
		fmt.Fprintln(os.Stderr, "operator:", err)
		os.Exit(1)
	}
}
