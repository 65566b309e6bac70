package operator

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/protobuf/proto"

	"udo.dev/operator/internal/pb"
)

// batches calls its function for each batch.
type batches struct {
	process func(batch arrow.RecordBatch, ctx *Context) (arrow.RecordBatch, error)
}

func (*batches) Open(*Context) error { return nil }

func (b *batches) ProcessBatch(batch arrow.RecordBatch, ctx *Context) (arrow.RecordBatch, error) {
	return b.process(batch, ctx)
}

// opensWith emits in Open.
type opensWith struct{}

func (opensWith) Open(ctx *Context) error {
	ctx.Emit(Row{"s": "a"})
	return nil
}
func (opensWith) Process(Event, *Context) error { return nil }

var texts = arrow.NewSchema([]arrow.Field{{Name: "s", Type: text, Nullable: true}}, nil)

func textBatch(schema *arrow.Schema, values ...string) arrow.RecordBatch {
	rows := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	for _, value := range values {
		switch b := rows.Field(0).(type) {
		case *array.ListBuilder:
			b.Append(true)
			b.ValueBuilder().(*array.StringBuilder).Append(value)
		case *array.StringBuilder:
			b.Append(value)
		}
	}
	return rows.NewRecordBatch()
}

// asked starts a server, and returns its replies to Start and then to a request with one event.
func asked(t *testing.T, op any, schema *arrow.Schema) (replies []*pb.Message, rows int64) {
	t.Helper()
	s := &server{op: op, wire: &wire{bound: noBound}, keyed: newKeyed()}
	start := &pb.Start{Input: schemaMessage(schema), Output: schemaMessage(schema)}
	reply := &pb.Message{}
	s.guarded(&pb.Message{Kind: &pb.Message_Start{Start: start}}, reply, nil)
	replies = append(replies, reply)
	if reply.GetFailure() != nil {
		return replies, 0
	}
	var events bytes.Buffer
	payload, err := ipc.GetRecordBatchPayload(textBatch(schema, "a"))
	if err == nil {
		_, err = payload.WritePayload(&events)
	}
	if err != nil {
		t.Fatal(err)
	}
	reply = &pb.Message{}
	tables := map[pb.Part_Table][]byte{pb.Part_EVENTS: events.Bytes()}
	for _, table := range s.guarded(&pb.Message{Kind: &pb.Message_Data{Data: &pb.Data{}}}, reply, tables) {
		rows += table.batch.NumRows()
	}
	return append(replies, reply), rows
}

func TestEmittingWhereARowWouldComeWithALaterAnswerIsRefused(t *testing.T) {
	answers := func(_ arrow.RecordBatch, ctx *Context) (arrow.RecordBatch, error) { return nil, opensWith{}.Open(ctx) }
	for where, op := range map[string]any{"Open": opensWith{}, "ProcessBatch": &batches{process: answers}} {
		replies, rows := asked(t, op, texts)
		if f := replies[len(replies)-1].GetFailure(); f == nil || !strings.Contains(f.Message, "ctx.Emit is for Process, ") {
			t.Errorf("%s: got %v with %d rows", where, replies, rows)
		}
	}
}

func TestABatchWithTextThatIsNotUTF8IsRefused(t *testing.T) {
	lists := arrow.NewSchema([]arrow.Field{{Name: "s", Type: arrow.ListOf(text), Nullable: true}}, nil)
	for _, schema := range []*arrow.Schema{texts, lists} {
		for _, value := range []string{"ü", garbled} {
			op := &batches{process: func(arrow.RecordBatch, *Context) (arrow.RecordBatch, error) {
				return textBatch(schema, "a", value), nil
			}}
			replies, _ := asked(t, op, schema)
			f := replies[1].GetFailure()
			if refused := f != nil && f.Code == "schema" && strings.Contains(f.Message, "not UTF-8"); refused != (value == garbled) {
				t.Errorf("%v, %q: %v", schema, value, replies[1])
			}
		}
	}
}

func TestAFailureCanBeSentWhateverItSays(t *testing.T) {
	for _, why := range []any{
		errors.New("raise " + garbled), errors.New(strings.Repeat("ü", 1<<20) + "the end"), garbled, strings.Repeat("\xbf", 3<<20), 5,
	} {
		reply := &pb.Message{}
		(&server{row: -1}).fail(reply, why, strings.Repeat("ü", 1<<20))
		data, err := proto.Marshal(reply)
		if f := reply.GetFailure(); err != nil || len(data) >= 1<<20 || f.Message == "" || f.Trace == "" || !utf8.ValidString(f.Message) {
			t.Errorf("%.20q: %d bytes, %v", why, len(data), err)
		}
		if f := reply.GetFailure(); strings.Contains(f.Message, "cut") && why != nil {
			if of, long := why.(error); long && !strings.HasSuffix(f.Message, "the end") {
				t.Errorf("%.20q has lost its end: %q", of, f.Message)
			}
		}
	}
}

func TestALogRecordIsSentWhateverItSays(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	log := slog.New(&logs{wire: &wire{conn: ours}})
	for _, record := range []string{"log " + garbled, strings.Repeat("x", 2<<20)} {
		go log.Info(record)
		theirs.SetReadDeadline(time.Now().Add(5 * time.Second))
		head := make([]byte, 8)
		if _, err := theirs.Read(head); err != nil {
			t.Errorf("%.20q: nothing came: %v", record, err)
		} else if size := int(head[0]) | int(head[1])<<8 | int(head[2])<<16 | int(head[3])<<24; size >= 1<<20 {
			t.Errorf("%.20q: a header of %d bytes", record, size)
		} else if rest := make([]byte, size+padding(size)); len(rest) > 0 {
			if _, err := theirs.Read(rest); err != nil {
				t.Error(err)
			}
		}
	}
}

type (
	opensOtherwise   struct{ batches }
	closesOtherwise  struct{ batches }
	firesOtherwise   struct{ batches }
	migratesLess     struct{ batches }
	byPointer        struct{}
	twofold          struct{ batches }
	opensByPromotion struct{ *batches }
)

func (opensOtherwise) Open(*Context)                     {}
func (closesOtherwise) Close()                           {}
func (firesOtherwise) OnTimer(time.Time, *Context) error { return nil }
func (migratesLess) Migrate(State) (State, error)        { return nil, nil }
func (*byPointer) Open(*Context) error                   { return nil }
func (byPointer) Process(Event, *Context) error          { return nil }
func (*twofold) Process(Event, *Context) error           { return nil }
func (*twofold) ProcessKeyed(Event, *Key) error          { return nil }

func TestAnOperatorWithAMethodThatWouldNotBeCalledIsRefused(t *testing.T) {
	for _, c := range []struct {
		op   any
		says string
	}{
		{&opensOtherwise{}, "has Open(*operator.Context), which would not be called: expected Open(*operator.Context) error"},
		{&closesOtherwise{}, "has Close(), which would not be called: expected Close() error"},
		{&firesOtherwise{}, "has OnTimer(time.Time, *operator.Context) error, which would not be called: expected OnTimer(time.Time, "},
		{&migratesLess{}, "expected Migrate(operator.State, int) (operator.State, error)"},
		{byPointer{}, "Open of operator.byPointer has a pointer as its receiver and would not be called: pass a pointer to operator.Run"},
		{&twofold{}, "has Process and ProcessBatch and ProcessKeyed: expected one of them"},
		{nil, "has none of ProcessBatch, "},
		{5, "has none of ProcessBatch, "},
	} {
		if _, err := capabilitiesOf(c.op); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%T: expected %q, got %v", c.op, c.says, err)
		}
	}
	for _, op := range []any{&byPointer{}, &batches{}, opensByPromotion{}} {
		if _, err := capabilitiesOf(op); err != nil {
			t.Error(err)
		}
	}
}
