package operator

import (
	"reflect"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Nested values that an operator emits in Go's own types are read back in the same types, at every depth.
func TestListsStructsAndMapsAreGosBothWays(t *testing.T) {
	point := arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, arrow.Field{Name: "y", Type: arrow.BinaryTypes.String, Nullable: true})

	for _, c := range []struct {
		of         arrow.DataType
		given, got any
	}{
		{arrow.ListOf(arrow.PrimitiveTypes.Int64), []int64{3, 1}, []any{int64(3), int64(1)}},
		{arrow.ListOf(arrow.BinaryTypes.String), []any{"a", nil}, []any{"a", nil}},
		{point, map[string]any{"x": 1, "y": nil}, map[string]any{"x": int64(1), "y": nil}},
		{arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int64), map[string]int64{"b": 2, "a": 1}, map[any]any{"a": int64(1), "b": int64(2)}},
		{arrow.MapOf(arrow.PrimitiveTypes.Int64, arrow.ListOf(point)), map[int64]any{2: []any{nil}, 1: []map[string]any{{"x": int64(7), "y": "z"}}},
			map[any]any{int64(2): []any{nil}, int64(1): []any{map[string]any{"x": int64(7), "y": "z"}}}},
		{arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Float64), [2]float64{1, 2}, []any{1.0, 2.0}},
	} {
		schema := arrow.NewSchema([]arrow.Field{{Name: "v", Type: c.of, Nullable: true}}, nil)
		b := builderOf(schema, noBound)
		b.append(Row{"v": c.given})
		b.append(Row{"v": nil})
		batch := b.rows.NewRecordBatch()
		nested, ok := valueOf(batch.Column(0), 0).(Nested)
		if !ok || !reflect.DeepEqual(nested.Go(), c.got) {
			t.Errorf("%s: %v became %v", c.of, c.given, nested.Go())
		}
		if got := valueOf(batch.Column(0), 1); got != nil {
			t.Errorf("%s: nil became %v", c.of, got)
		}
	}
}

func TestAnotherFormIsRefusedByTheColumn(t *testing.T) {
	point := arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int64, Nullable: true})
	for _, c := range []struct {
		of    arrow.DataType
		given any
	}{
		{point, map[string]any{"y": 1}},
		{point, map[string]any{"x": 1, "y": 1}},
		{point, map[int]any{1: 1}},
		{point, []any{1}},
		{arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int64), []any{1}},
		{arrow.ListOf(arrow.PrimitiveTypes.Int64), map[string]any{"x": 1}},
		{arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int64), []int64{1}},
	} {
		func() {
			defer func() {
				if failed, ok := recover().(SchemaError); !ok {
					t.Errorf("%s: %v: %v", c.of, c.given, failed)
				}
			}()
			builderOf(arrow.NewSchema([]arrow.Field{{Name: "v", Type: c.of, Nullable: true}}, nil), noBound).append(Row{"v": c.given})
		}()
	}
}

func TestAMapThatHasAKeyTwiceIsNotTurnedIntoOneOfGo(t *testing.T) {
	b := array.NewMapBuilder(memory.DefaultAllocator, arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int64, false)
	b.Append(true)
	for i := range 2 {
		b.KeyBuilder().(*array.StringBuilder).Append("a")
		b.ItemBuilder().(*array.Int64Builder).Append(int64(i))
	}
	defer func() {
		if p := recover(); p == nil {
			t.Error("expected a panic")
		}
	}()
	t.Error(Nested{b.NewArray(), 0}.Go())
}
