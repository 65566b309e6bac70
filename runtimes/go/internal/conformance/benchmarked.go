package main

// The roles timed by `python -m benchmarks languages`.

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"udo.dev/operator"
)

const limit = 500.0

type filter struct{}

func (filter) ProcessBatch(batch arrow.RecordBatch, ctx *operator.Context) (arrow.RecordBatch, error) {
	amounts := batch.Column(2).(*array.Float64).Float64Values()
	kept := make([]int, 0, len(amounts))
	for row, amount := range amounts {
		if amount > limit {
			kept = append(kept, row)
		}
	}
	rows := array.NewRecordBuilder(memory.DefaultAllocator, ctx.Output)
	rows.Reserve(len(kept))
	for column, b := range rows.Fields() {
		switch b := b.(type) {
		case *array.Int64Builder:
			values := batch.Column(column).(*array.Int64).Int64Values()
			for _, row := range kept {
				b.UnsafeAppend(values[row])
			}
		case *array.Float64Builder:
			for _, row := range kept {
				b.UnsafeAppend(amounts[row])
			}
		}
	}
	return rows.NewRecordBatch(), nil
}

type filterEach struct{}

func (filterEach) Process(event operator.Event, ctx *operator.Context) error {
	if amount := event.Float("amount"); amount > limit {
		ctx.Emit(operator.Row{"id": event.Int("id"), "card": event.Int("card"), "amount": amount, "at": event.Int("at")})
	}
	return nil
}

type tally struct{}

func (tally) ProcessKeyed(event operator.Event, ctx *operator.Key) error {
	state := counted{}
	if _, err := ctx.State(&state); err != nil {
		return err
	}
	state.N++
	ctx.Emit(operator.Row{"id": event.Int("id"), "card": event.Int("card"), "n": state.N})
	return ctx.SetState(state)
}

type tallyBatches struct{}

func (tallyBatches) ProcessKeys(batch arrow.RecordBatch, keys []*operator.Key, ctx *operator.Context) (arrow.RecordBatch, error) {
	counts := make(map[*operator.Key]*counted, len(keys))
	numbers := array.NewInt64Builder(memory.DefaultAllocator)
	for _, key := range keys {
		count, there := counts[key]
		if !there {
			count = &counted{}
			if _, err := key.State(count); err != nil {
				return nil, err
			}
			counts[key] = count
		}
		count.N++
		numbers.Append(count.N)
	}
	for key, count := range counts {
		if err := key.SetState(count); err != nil {
			return nil, err
		}
	}
	columns := []arrow.Array{batch.Column(0), batch.Column(1), numbers.NewArray()}
	return array.NewRecordBatch(ctx.Output, columns, batch.NumRows()), nil
}
