package operator

// Events as rows of a record batch, and rows gathered into one.

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/arrow/scalar"
)

// Event is one event. Its methods take a column's name; if there is none, or it has another type, they panic and name what there is.
type Event struct {
	batch   arrow.RecordBatch
	columns map[string]int
	row     int
}

func (e Event) column(name string) arrow.Array {
	i, ok := e.columns[name]
	if !ok {
		panic(fmt.Sprintf("the event has no column %q; there are: %s", name, names(e.columns)))
	}
	return e.batch.Column(i)
}

func wrong(name string, column arrow.Array, want string) string {
	return fmt.Sprintf("column %q is %s, not %s", name, column.DataType(), want)
}

// IsNull reports whether the column is null.
func (e Event) IsNull(name string) bool { return isNull(e.column(name), e.row) }

// isNull reports whether a value is null, also in a column of Arrow's type null, where Arrow's own IsNull fails for want of a bitmap.
func isNull(c arrow.Array, row int) bool { return c.IsNull(row) || c.DataType().ID() == arrow.NULL }

// Int returns the value of an integer column of any width; 0 if it is null.
func (e Event) Int(name string) int64 {
	v, ok := e.Value(name).(int64)
	if c := e.column(name); !ok && c.IsValid(e.row) {
		panic(wrong(name, c, "an integer"))
	}
	return v
}

// Float returns the value of a column of floating point numbers; 0 if it is null.
func (e Event) Float(name string) float64 {
	c := e.column(name)
	switch c := c.(type) {
	case *array.Float64:
		if c.IsNull(e.row) {
			return 0
		}
		return c.Value(e.row)
	case *array.Float32:
		if c.IsNull(e.row) {
			return 0
		}
		return float64(c.Value(e.row))
	}
	panic(wrong(name, c, "a floating point number"))
}

// Text returns the value of a column of text; "" if it is null. It is copied, so that a state may keep it.
func (e Event) Text(name string) string {
	v, ok := e.Value(name).(string)
	if c := e.column(name); !ok && c.IsValid(e.row) {
		panic(wrong(name, c, "text"))
	}
	return v
}

// Time returns the value of a column of timestamps; the zero time if it is null.
func (e Event) Time(name string) time.Time {
	v, ok := e.Value(name).(time.Time)
	if c := e.column(name); !ok && c.IsValid(e.row) {
		panic(wrong(name, c, "a timestamp"))
	}
	return v
}

// Value returns the value of any column: nil, int64, uint64, float64, bool, string, []byte, time.Time, Nested, or else an Arrow scalar.
func (e Event) Value(name string) any { return valueOf(e.column(name), e.row) }

func valueOf(c arrow.Array, row int) any {
	if isNull(c, row) {
		return nil
	}
	switch c := c.(type) {
	case *array.Int64:
		return c.Value(row)
	case *array.Int32:
		return int64(c.Value(row))
	case *array.Int16:
		return int64(c.Value(row))
	case *array.Int8:
		return int64(c.Value(row))
	case *array.Uint64:
		return c.Value(row)
	case *array.Uint32:
		return int64(c.Value(row))
	case *array.Float64:
		return c.Value(row)
	case *array.Float32:
		return float64(c.Value(row))
	case *array.Boolean:
		return c.Value(row)
	case *array.String:
		return strings.Clone(c.Value(row))
	case *array.Binary:
		return append([]byte{}, c.Value(row)...)
	case *array.Timestamp:
		return c.Value(row).ToTime(c.DataType().(*arrow.TimestampType).Unit)
	}
	if _, nested := c.DataType().(arrow.NestedType); nested {
		return Nested{c, row}
	}
	s, err := scalar.GetScalar(c, row)
	if err != nil {
		panic(err)
	}
	return s
}

func columnsOf(schema *arrow.Schema) map[string]int {
	columns := make(map[string]int, schema.NumFields())
	for i, f := range schema.Fields() {
		columns[f.Name] = i
	}
	return columns
}

func names[V any](columns map[string]V) string {
	found := make([]string, 0, len(columns))
	for name := range columns {
		found = append(found, name)
	}
	sort.Strings(found)
	return strings.Join(found, ", ")
}

// builder gathers emitted rows.
type builder struct {
	schema *arrow.Schema
	fields []arrow.Field // the schema's, which Schema.Fields copies each time
	rows   *array.RecordBuilder
	count  int64
	sizes  sizes
	bound  int64 // of all rows, in bytes
}

func builderOf(schema *arrow.Schema, bound int64) *builder {
	rows := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	return &builder{schema: schema, fields: schema.Fields(), rows: rows, sizes: sizesOf(rows.Fields()), bound: bound}
}

// take returns the rows as a batch, and removes them.
func (b *builder) take() arrow.RecordBatch {
	b.requireBounded() // even if the operator has recovered from the panic
	b.count = 0
	return b.rows.NewRecordBatch()
}

func (b *builder) append(row Row) {
	if len(row) != len(b.fields) {
		panic(SchemaError{fmt.Sprintf("expected an event with the columns %s; the operator answered %s", names(columnsOf(b.schema)), names(row))})
	}
	b.count++
	b.requireBounded() // before the builders double their size
	for i, f := range b.fields {
		value, ok := row[f.Name]
		if !ok {
			panic(SchemaError{fmt.Sprintf("the answer lacks the column %q; it has: %s", f.Name, names(row))})
		}
		if err := appendValue(b.rows.Field(i), value); err != nil {
			panic(SchemaError{fmt.Sprintf("column %q: expected %s, the operator answered %v (%T): %v", f.Name, f.Type, value, value, err)})
		}
	}
	if len(b.sizes.varied) > 0 {
		b.requireBounded()
	}
}

func (b *builder) requireBounded() {
	if size := b.sizes.of(b.count); size > b.bound {
		panic(tooLarge{events: b.count, size: size, bound: b.bound})
	}
}

// appendNested copies one value of an array, with everything nested in it.
func appendNested(b array.Builder, from arrow.Array, row int) error {
	if !arrow.TypeEqual(from.DataType(), b.Type()) {
		return fmt.Errorf("it is %s", from.DataType())
	}
	if from.IsNull(row) {
		b.AppendNull()
		return nil
	}
	switch from := from.(type) {
	case *array.Map:
		b := b.(*array.MapBuilder)
		b.Append(true)
		first, last := from.ValueOffsets(row)
		for i := int(first); i < int(last); i++ {
			if err := errors.Join(appendNested(b.KeyBuilder(), from.Keys(), i), appendNested(b.ItemBuilder(), from.Items(), i)); err != nil {
				return err
			}
		}
		return nil
	case array.ListLike:
		b := b.(array.ListLikeBuilder)
		b.Append(true)
		first, last := from.ValueOffsets(row)
		for i := int(first); i < int(last); i++ {
			if err := appendNested(b.ValueBuilder(), from.ListValues(), i); err != nil {
				return err
			}
		}
		return nil
	case *array.Struct:
		b := b.(*array.StructBuilder)
		b.Append(true)
		for i := range from.NumField() {
			if err := appendNested(b.FieldBuilder(i), from.Field(i), row); err != nil {
				return err
			}
		}
		return nil
	}
	return appendValue(b, valueOf(from, row))
}

func appendValue(b array.Builder, value any) error {
	switch v := value.(type) {
	case nil:
		b.AppendNull()
		return nil
	case scalar.Scalar:
		return scalar.Append(b, v)
	case Nested:
		return appendNested(b, v.Array, v.Row)
	case int:
		return appendValue(b, int64(v))
	case Decimal:
		if t, ok := b.Type().(*arrow.Decimal128Type); ok {
			number, err := decimal128.FromString(string(v), t.Precision, t.Scale)
			if err == nil {
				b.(*array.Decimal128Builder).Append(number)
			}
			return err
		}
	case time.Time:
		switch b := b.(type) {
		case *array.TimestampBuilder:
			at, err := arrow.TimestampFromTime(v, b.Type().(*arrow.TimestampType).Unit)
			if err == nil {
				b.Append(at)
			}
			return err
		case *array.Date32Builder:
			b.Append(arrow.Date32FromTime(v))
			return nil
		}
	case int64:
		switch b := b.(type) {
		case *array.Int64Builder:
			b.Append(v)
			return nil
		case *array.Float64Builder:
			b.Append(float64(v))
			return nil
		}
	case float64:
		if b, ok := b.(*array.Float64Builder); ok {
			b.Append(v)
			return nil
		}
	case string:
		if b, ok := b.(*array.StringBuilder); ok {
			b.Append(v)
			return nil
		}
	case bool:
		if b, ok := b.(*array.BooleanBuilder); ok {
			b.Append(v)
			return nil
		}
	case []byte:
		if b, ok := b.(*array.BinaryBuilder); ok {
			b.Append(v)
			return nil
		}
	}
	if done, err := appendGo(b, value); done {
		return err
	}
	s, err := scalar.MakeScalar(value), error(nil)
	if !arrow.TypeEqual(s.DataType(), b.Type()) {
		s, err = s.CastTo(b.Type())
	}
	if err != nil {
		return err
	}
	return scalar.Append(b, s)
}
