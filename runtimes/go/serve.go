package operator

// The conversation with the engine: one request at a time, each answered once.

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"udo.dev/operator/internal/pb"
)

const (
	protocolVersion = 1
	sdk             = "go 0.1.0"
	sharedMemory    = "shared-memory"
	// slack is the amount of garbage allowed before it is collected. A frame's tables are garbage once it is answered, and a small heap
	// would be collected every few frames, at several times the frames' own cost.
	slack = 32 << 20
)

type server struct {
	op     any
	wire   *wire
	ctx    Context
	input  *decoder
	keyed  *keyed
	column map[string]int
	row    int // the row being processed; -1: not row by row
}

func serve(op any, path string) error {
	unused := make([]byte, slack) // counts as heap, but takes no memory: nothing is written to it
	defer runtime.KeepAlive(unused)
	// The engine says when to stop. The signals are caught, not ignored: programs that the operator starts would inherit ignored ones.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM)
	capabilities, err := capabilitiesOf(op)
	if err != nil {
		return err
	}
	w, err := dial(path)
	if err != nil {
		return err
	}
	offered := givenShared()
	if offered != nil {
		capabilities = append(capabilities, sharedMemory)
	}
	s := &server{op: op, wire: w, keyed: newKeyed()}
	hello := &pb.Hello{Oldest: protocolVersion, Newest: protocolVersion, Capabilities: capabilities, Sdk: sdk}
	if err := w.send(&pb.Message{Kind: &pb.Message_Hello{Hello: hello}}); err != nil {
		return err
	}
	for {
		request, tables, err := w.receive()
		if errors.Is(err, io.EOF) {
			return nil // the engine is gone, so this process ends
		}
		if err != nil {
			return err
		}
		if start := request.GetStart(); start != nil && slices.Contains(start.Capabilities, sharedMemory) {
			w.shared = offered
		}
		reply := &pb.Message{Id: request.Id}
		answer := s.guarded(request, reply, tables)
		err = w.send(reply, answer...)
		if large, ok := err.(tooLarge); ok {
			s.row = -1
			reply = &pb.Message{Id: request.Id}
			s.fail(reply, large, "")
			err = w.send(reply)
		}
		if err != nil {
			return err
		}
		if request.GetStop() != nil {
			return nil
		}
	}
}

// guarded handles a request; an error or a panic becomes a Failure.
func (s *server) guarded(request, reply *pb.Message, tables map[pb.Part_Table][]byte) (answer []table) {
	s.row = -1
	defer func() {
		if p := recover(); p != nil {
			s.fail(reply, p, string(debug.Stack()))
			answer = nil
		}
	}()
	answer, err := s.handle(request, reply, tables)
	if err != nil {
		s.fail(reply, err, "")
		return nil
	}
	return answer
}

func (s *server) fail(reply *pb.Message, why any, trace string) {
	f := &pb.Failure{Type: "panic"}
	if err, ok := why.(error); ok {
		f.Type = strings.TrimPrefix(fmt.Sprintf("%T", err), "*")
		var wrong SchemaError
		if errors.As(err, &wrong) {
			f.Code = "schema"
		}
		if trace == "" {
			trace = fmt.Sprintf("%+v", err)
		}
	}
	f.Type, f.Message, f.Trace = told(f.Type, mostMessage), told(fmt.Sprint(why), mostMessage), told(trace, mostTrace)
	if s.row >= 0 {
		row := uint32(s.row)
		f.Row = &row
	}
	reply.Kind = &pb.Message_Failure{Failure: f}
	if s.ctx.Output != nil {
		s.ctx.rows = builderOf(s.ctx.Output, s.wire.bound) // drops the rows emitted so far
	}
}

func (s *server) handle(request, reply *pb.Message, tables map[pb.Part_Table][]byte) ([]table, error) {
	reply.Kind = &pb.Message_Answer{Answer: &pb.Answer{}}
	switch kind := request.Kind.(type) {
	case *pb.Message_Start:
		reply.Kind = &pb.Message_Ready{Ready: &pb.Ready{}}
		return nil, s.start(kind.Start, reply.GetReady())
	case *pb.Message_Data:
		return s.data(kind.Data, tables)
	case *pb.Message_Rehearse:
		return s.data(kind.Rehearse, tables)
	case *pb.Message_Timers:
		return s.timers(kind.Timers, tables)
	case *pb.Message_Migrate:
		return s.migrate(int(kind.Migrate.FromVersion), tables)
	case *pb.Message_Ping:
		reply.Kind = &pb.Message_Ping{Ping: &pb.Ping{}}
		return nil, nil
	case *pb.Message_Stop:
		reply.Kind = &pb.Message_Bye{Bye: &pb.Bye{}}
		if c, ok := s.op.(Closer); ok {
			return nil, c.Close()
		}
		return nil, nil
	}
	return nil, fmt.Errorf("this SDK (%s) does not know the request %T", sdk, request.Kind)
}

func (s *server) start(start *pb.Start, ready *pb.Ready) error {
	switch s.op.(type) {
	case Keyed, KeyedBatches:
		if start.Keyed == nil {
			return SchemaError{`the operator keeps state by key, and operator.toml names no key: add key = ["COLUMN", ...], the columns that make it up`}
		}
	}
	input, err := decoderOf(start.Input)
	if err != nil {
		return err
	}
	output, err := decoderOf(start.Output)
	if err != nil {
		return err
	}
	s.input, s.column = input, columnsOf(input.schema)
	s.wire.bound = noBound
	if n := start.AnswerBytes; n > 0 && n < noBound {
		s.wire.bound = int64(n)
	}
	s.ctx = Context{
		Operator: start.Operator, Version: start.OperatorVersion, Instance: start.Instance,
		Input: input.schema, Output: output.schema, rows: builderOf(output.schema, s.wire.bound),
		Directory: os.Getenv("UDO_DIRECTORY"), Log: slog.New(&logs{wire: s.wire}),
	}
	if o, ok := s.op.(Opener); ok && !start.Check {
		begun := time.Now()
		err = o.Open(&s.ctx)
		ready.OpenMs = float64(time.Since(begun).Microseconds()) / 1000
	}
	if err != nil {
		return err
	}
	return s.requireNoneEmitted()
}

func (s *server) data(data *pb.Data, tables map[pb.Part_Table][]byte) ([]table, error) {
	batch, err := s.input.batch(tables[pb.Part_EVENTS])
	if err != nil {
		return nil, err
	}
	s.ctx.watermark = data.WatermarkUs
	event := Event{batch: batch, columns: s.column}
	switch op := s.op.(type) {
	case Batches:
		return s.whole(op.ProcessBatch(batch, &s.ctx))
	case Events:
		for s.row = 0; s.row < int(batch.NumRows()); s.row++ {
			event.row = s.row
			if err := op.Process(event, &s.ctx); err != nil {
				return nil, err
			}
		}
		return s.emitted(), nil
	}
	var set []timer
	touched, err := s.keyed.touched(tables[pb.Part_KEYS], &s.ctx, &set)
	if err != nil {
		return nil, err
	}
	rows, err := s.keyed.rows(tables[pb.Part_INDEX], touched)
	if err != nil {
		return nil, err
	}
	if op, ok := s.op.(KeyedBatches); ok {
		answer, err := s.whole(op.ProcessKeys(batch, rows, &s.ctx))
		return append(answer, changes(touched, set, false)...), err
	}
	op := s.op.(Keyed)
	for s.row = range rows {
		event.row = s.row
		if err := op.ProcessKeyed(event, rows[s.row]); err != nil {
			return nil, err
		}
	}
	return append(s.emitted(), changes(touched, set, false)...), nil
}

func (s *server) timers(t *pb.Timers, tables map[pb.Part_Table][]byte) ([]table, error) {
	op, ok := s.op.(Timed)
	if !ok {
		return nil, fmt.Errorf("%T has no OnTimer", s.op)
	}
	s.ctx.watermark = &t.WatermarkUs
	var set []timer
	touched, err := s.keyed.touched(tables[pb.Part_KEYS], &s.ctx, &set)
	if err != nil {
		return nil, err
	}
	due, err := s.keyed.due(tables[pb.Part_DUE])
	if err != nil {
		return nil, err
	}
	for s.row = range due {
		if err := op.OnTimer(time.UnixMicro(due[s.row].at).UTC(), touched[due[s.row].key]); err != nil {
			return nil, err
		}
	}
	return append(s.emitted(), changes(touched, set, false)...), nil
}

func (s *server) migrate(from int, tables map[pb.Part_Table][]byte) ([]table, error) {
	op, ok := s.op.(Migrating)
	if !ok {
		return nil, fmt.Errorf("%T has no Migrate", s.op)
	}
	var set []timer
	touched, err := s.keyed.touched(tables[pb.Part_KEYS], &s.ctx, &set)
	if err != nil {
		return nil, err
	}
	for s.row = range touched {
		old := State{}
		if _, err := touched[s.row].State(&old); err != nil {
			return nil, err
		}
		state, err := op.Migrate(old, from)
		if err != nil {
			return nil, err
		}
		if err := touched[s.row].SetState(state); err != nil {
			return nil, err
		}
	}
	return changes(touched, nil, true), s.requireNoneEmitted()
}

func (s *server) emitted() []table { return []table{{pb.Part_ROWS, s.ctx.rows.take()}} }

// requireNoneEmitted refuses rows that would otherwise come with a later answer, which may be of another epoch.
func (s *server) requireNoneEmitted() error {
	if s.ctx.rows.count > 0 {
		return errors.New("ctx.Emit is for Process, ProcessKeyed and OnTimer: ProcessBatch and ProcessKeys return their rows in a batch")
	}
	return nil
}

func (s *server) whole(answer arrow.RecordBatch, err error) ([]table, error) {
	if err == nil {
		err = s.requireNoneEmitted()
	}
	if err != nil || answer == nil {
		return nil, err
	}
	have, want := answer.Schema(), s.ctx.Output
	fits := have.NumFields() == want.NumFields()
	for i := 0; fits && i < want.NumFields(); i++ {
		fits = have.Field(i).Name == want.Field(i).Name && arrow.TypeEqual(have.Field(i).Type, want.Field(i).Type)
	}
	if !fits {
		return nil, SchemaError{fmt.Sprintf("the operator's answer does not fit its output schema: expected %v, got %v", want, have)}
	}
	for i, column := range answer.Columns() {
		if text, garbled := garbledText(column); garbled {
			return nil, SchemaError{fmt.Sprintf("column %q: the operator answered %.60q: %v", want.Field(i).Name, text, errText)}
		}
	}
	return []table{{pb.Part_ROWS, answer}}, nil
}
