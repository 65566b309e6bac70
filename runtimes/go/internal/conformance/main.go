// Conformance is the Go SDK's conformance operator: docs/operator-protocol.md describes the roles, and `udo conformance` tests them.
package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"udo.dev/operator"
)

type opened struct{}

func (opened) Open(*operator.Context) error {
	if os.Getenv("UDO_CONFORMANCE_OPEN") == "fails" {
		return errors.New("no model")
	}
	return nil
}

type forward struct{ opened }

func (forward) ProcessBatch(batch arrow.RecordBatch, _ *operator.Context) (arrow.RecordBatch, error) {
	return batch, nil
}

type each struct {
	opened
	events int
}

// The lists, structs and maps of every other event are converted to Go's own types and back.
func (e *each) Process(event operator.Event, ctx *operator.Context) error {
	row := operator.Row{}
	for _, field := range ctx.Input.Fields() {
		value := event.Value(field.Name)
		if nested, ok := value.(operator.Nested); ok && e.events%2 == 0 {
			value = nested.Go()
		}
		row[field.Name] = value
	}
	e.events++
	ctx.Emit(row)
	return nil
}

type events struct{ opened }

func (events) Process(event operator.Event, ctx *operator.Context) error {
	n := event.Int("n")
	switch event.Text("do") {
	case "none":
		return nil
	case "twice":
		ctx.Emit(operator.Row{"n": n + 1})
	case "log":
		for _, log := range []func(string, ...any){ctx.Log.Debug, ctx.Log.Info, ctx.Log.Warn, ctx.Log.Error} {
			log(fmt.Sprintf("log %d", n))
		}
	case "print":
		fmt.Println("print", n)
	case "raise":
		return fmt.Errorf("raise %d", n)
	case "endless":
		for {
			ctx.Emit(operator.Row{"n": n + 1})
		}
	case "wrong":
		ctx.Emit(operator.Row{"n": "text"})
	case "sleep":
		time.Sleep(time.Duration(n) * time.Millisecond)
	case "hang":
		time.Sleep(1000 * time.Hour)
	case "exit":
		os.Exit(3)
	case "abort":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "memory":
		for taken := [][]byte{}; ; {
			taken = append(taken, make([]byte, 1<<24))
			for i := 0; i < 1<<24; i += 4096 {
				taken[len(taken)-1][i] = 1
			}
		}
	}
	ctx.Emit(operator.Row{"n": n + 1})
	return nil
}

func (events) Close() error {
	fmt.Println("closed")
	return nil
}

type keyed struct{ timed }

type counted struct {
	N int64 `msgpack:"n"`
}

// add adds to n in the key's state, and leaves the rest.
func add(key *operator.Key, n int64) (int64, error) {
	state := operator.State{}
	if _, err := key.State(&state); err != nil {
		return 0, err
	}
	sum, _ := state["n"].(int64)
	state["n"] = sum + n
	return sum + n, key.SetState(state)
}

func (keyed) ProcessKeyed(event operator.Event, ctx *operator.Key) error {
	n, answer := event.Int("n"), operator.Row{"k": event.Value("k"), "n": nil, "at": nil}
	switch event.Text("do") {
	case "count":
		sum, err := add(ctx, n)
		if err != nil {
			return err
		}
		answer["n"] = sum
	case "get":
		state := counted{}
		there, err := ctx.State(&state)
		if err != nil {
			return err
		}
		if there {
			answer["n"] = state.N
		}
	case "copy":
		state := operator.State{}
		if there, err := ctx.State(&state); err != nil || !there {
			return err
		}
		return ctx.SetState(state)
	case "clear":
		ctx.Clear()
		return nil
	case "timer":
		ctx.Timer(event.Time("at"))
		return nil
	case "expire":
		ctx.Expire(event.Time("at"))
		return nil
	case "watermark":
		if at, known := ctx.Watermark(); known {
			answer["at"] = at
		}
	case "raise":
		if _, err := add(ctx, 1000); err != nil {
			return err
		}
		ctx.Timer(event.Time("at"))
		return fmt.Errorf("raise %d", n)
	}
	ctx.Emit(answer)
	return nil
}

type timed struct{ opened }

func (timed) OnTimer(at time.Time, ctx *operator.Key) error {
	sum, err := add(ctx, 1)
	if err != nil {
		return err
	}
	ctx.Emit(operator.Row{"k": ctx.Key(), "n": sum, "at": at})
	return nil
}

func (keyed) Migrate(old operator.State, from int) (operator.State, error) {
	n, _ := old["n"].(int64)
	old["n"] = n * 10
	old["from"] = from
	return old, nil
}

// The vectorised one counts over the batch with the states of its keys.
type keyedBatches struct{ timed }

func (keyedBatches) ProcessKeys(batch arrow.RecordBatch, keys []*operator.Key, ctx *operator.Context) (arrow.RecordBatch, error) {
	added := batch.Column(2).(*array.Int64)
	sums := make(map[*operator.Key]*counted, len(keys))
	rows := array.NewRecordBuilder(memory.DefaultAllocator, ctx.Output)
	for i, key := range keys {
		sum, there := sums[key]
		if !there {
			sum = &counted{}
			if _, err := key.State(sum); err != nil {
				return nil, err
			}
			sums[key] = sum
		}
		sum.N += added.Value(i)
		switch batch.Column(1).(*array.String).Value(i) {
		case "timer":
			key.Timer(batch.Column(3).(*array.Timestamp).Value(i).ToTime(arrow.Microsecond))
		case "expire":
			key.Expire(batch.Column(3).(*array.Timestamp).Value(i).ToTime(arrow.Microsecond))
		}
		rows.Field(0).(*array.StringBuilder).Append(batch.Column(0).(*array.String).Value(i))
		rows.Field(1).(*array.Int64Builder).Append(sum.N)
		rows.Field(2).AppendNull()
	}
	for key, sum := range sums {
		if err := key.SetState(sum); err != nil {
			return nil, err
		}
	}
	return rows.NewRecordBatch(), nil
}

func main() {
	role := os.Getenv("UDO_CONFORMANCE")
	if role == "" {
		role = os.Args[len(os.Args)-1]
	}
	operator.Run(map[string]any{
		"forward": forward{}, "each": &each{}, "events": events{}, "keyed": keyed{}, "keyed_batches": keyedBatches{},
		"filter": filter{}, "filter_each": filterEach{}, "tally": tally{}, "tally_batches": tallyBatches{},
	}[role])
}
