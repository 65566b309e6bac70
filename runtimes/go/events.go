package operator

// Events as rows of a record batch, and rows gathered into one.

import (
	"fmt"
	"math"
	"sort"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/arrow/scalar"
)

// Event is one event. Its methods take a column's name. They panic if there is no such column or it has another type, and say what
// there is instead.
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

// isNull reports whether a value is null. A column of Arrow's type null has no bitmap, so Arrow's own IsNull does not work for it.
func isNull(c arrow.Array, row int) bool { return c.IsNull(row) || c.DataType().ID() == arrow.NULL }

// Int returns the value of an integer column of any width; 0 if it is null. It panics for an integer beyond int64: Value returns it.
func (e Event) Int(name string) int64 {
	switch v := e.Value(name).(type) {
	case nil:
		return 0
	case int64:
		return v
	case uint64:
		if v > math.MaxInt64 {
			panic(fmt.Sprintf("column %q has %d, which is beyond int64: read it with Value, as uint64", name, v))
		}
		return int64(v)
	}
	panic(wrong(name, e.column(name), "an integer"))
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

// Time returns the value of a column of timestamps; the zero time if it is null. Without a zone it is what the clock shows, as UTC: to keep
// it in a state, use the LocalTime that Value returns.
func (e Event) Time(name string) time.Time {
	switch v := e.Value(name).(type) {
	case nil:
		return time.Time{}
	case time.Time:
		return v
	case LocalTime:
		return v.Time
	}
	panic(wrong(name, e.column(name), "a timestamp"))
}

// Value returns the value of any column: nil, int64, float64, bool, string, []byte, Decimal, Date, time.Time in UTC, or LocalTime if the
// column has no zone, all of which a state may keep; uint64 for a column of that type; Nested for lists, structs and maps. Columns of other
// types are returned as Arrow scalars, which may be emitted.
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
	case *array.Uint16:
		return int64(c.Value(row))
	case *array.Uint8:
		return int64(c.Value(row))
	case *array.Float64:
		return c.Value(row)
	case *array.Float32:
		return float64(c.Value(row))
	case *array.Boolean:
		return c.Value(row)
	case *array.String:
		return strings.Clone(c.Value(row))
	case *array.LargeString:
		return strings.Clone(c.Value(row))
	case *array.Binary:
		return append([]byte{}, c.Value(row)...)
	case *array.LargeBinary:
		return append([]byte{}, c.Value(row)...)
	case *array.FixedSizeBinary:
		return append([]byte{}, c.Value(row)...)
	case *array.Timestamp:
		of := c.DataType().(*arrow.TimestampType)
		if at := c.Value(row).ToTime(of.Unit); of.TimeZone != "" {
			return at
		} else {
			return LocalTime{at}
		}
	case *array.Date32:
		return dateOf(int64(c.Value(row)))
	case *array.Decimal128:
		return decimalOf(c.Value(row).BigInt(), c.DataType().(arrow.DecimalType))
	case *array.Decimal256:
		return decimalOf(c.Value(row).BigInt(), c.DataType().(arrow.DecimalType))
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
